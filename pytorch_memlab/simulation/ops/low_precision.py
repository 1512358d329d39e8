"""Half precision that CUDA's kernels take and the CPU's do not: computed in single precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from ..machine.op_arguments import tensors_in
from .memory_formats import LOW_PRECISION


def in_single_precision(op: Any, *more_written: int) -> Callable[..., Any]:
    """The reference of an op: its kernel for the CPU, with conversions around it.

    Args:
        op: a ``torch._ops.OpOverload``.
        more_written: positions of arguments that it writes to though its schema does not say so.
    """
    infos = (argument.alias_info for argument in op._schema.arguments)
    marked = {place for place, info in enumerate(infos) if info is not None and info.is_write}
    written = sorted(marked.union(more_written))

    def compute(*args: Any, **kwargs: Any) -> Any:
        given = (tensor.dtype for tensor in tensors_in(args, kwargs))
        dtype = next((one for one in given if one in LOW_PRECISION), None)
        if dtype is None:
            return op(*args, **kwargs)

        def widened(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.float() if tensor.dtype is dtype else tensor

        def narrowed(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(dtype) if tensor.dtype is torch.float32 else tensor

        wide = tree_map_only(torch.Tensor, widened, args)
        found = op(*wide, **kwargs)
        for place in written:
            args[place].copy_(wide[place])
        own = next((args[place] for place in written if found is wide[place]), None)
        return tree_map_only(torch.Tensor, narrowed, found) if own is None else own

    return compute
