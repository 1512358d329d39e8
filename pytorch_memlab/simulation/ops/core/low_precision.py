"""Half precision that CUDA's kernels take and the CPU's do not: computed in single precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from ...machine.op_arguments import tensors_in
from .memory_formats import LOW_PRECISION


def in_single_precision(op: Any) -> Callable[..., Any]:
    """The reference of an ``OpOverload``: its kernel for the CPU, with conversions around it."""
    return _widening(op, dict.fromkeys(LOW_PRECISION, torch.float32))


def in_complex_single(op: Any) -> Callable[..., Any]:
    """The same for complex half precision, and for no other type of numbers."""
    return _widening(op, {torch.complex32: torch.complex64})


def _widening(op: Any, wide_types: Mapping[torch.dtype, torch.dtype]) -> Callable[..., Any]:
    infos = (argument.alias_info for argument in op._schema.arguments)
    written = [place for place, info in enumerate(infos) if info is not None and info.is_write]

    def compute(*args: Any, **kwargs: Any) -> Any:
        dtypes = (tensor.dtype for tensor in tensors_in(args, kwargs))
        dtype = next((candidate for candidate in dtypes if candidate in wide_types), None)
        if dtype is None:
            return op(*args, **kwargs)
        wide_type = wide_types[dtype]

        def widened(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(wide_type) if tensor.dtype is dtype else tensor

        def narrowed(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(dtype) if tensor.dtype is wide_type else tensor

        wide = tree_map_only(torch.Tensor, widened, args)
        result = op(*wide, **kwargs)
        for place in written:
            args[place].copy_(wide[place])
        own = next((args[place] for place in written if result is wide[place]), None)
        return tree_map_only(torch.Tensor, narrowed, result) if own is None else own

    return compute
