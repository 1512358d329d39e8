"""Ops of which nothing is known but their results: counted, so that they can be named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

_TAKE_NOTHING: Final = frozenset(
    {
        "_conj_physical", "_copy_from", "_local_scalar_dense", "_reshape_alias", "_to_copy",
        "_unsafe_view", "arange", "as_strided", "cat", "clone", "constant_pad_nd", "contiguous",
        "copy_", "detach", "diagonal_backward", "empty", "empty_like", "empty_strided", "eye",
        "fill_", "flip", "full", "full_like", "lift_fresh", "linspace", "masked_fill",
        "masked_fill_", "native_dropout", "native_dropout_backward", "new_empty",
        "new_empty_strided", "new_full", "new_ones", "new_zeros", "normal_", "ones", "ones_like",
        "rand", "rand_like", "randn", "randn_like", "repeat", "resize_", "resize_as_", "roll",
        "scalar_tensor", "scatter", "scatter_", "scatter_add_", "select_backward", "set_",
        "slice_backward", "stack", "tril", "tril_", "triu", "triu_", "uniform_", "zero_", "zeros",
        "zeros_like",
    }
)  # fmt: skip
"""Ops beside the elementwise ones whose CUDA kernels take nothing but their results' memory."""


@dataclass(slots=True)
class Unmodelled:
    """How often an op without an entry ran on a simulated GPU, and what it returned.

    Args:
        calls: how many.
        nbytes: of all its results together.
    """

    calls: int = 0
    nbytes: int = 0


def takes_nothing(op: Any) -> bool:
    """Whether an op's kernels are known to take nothing but their results' memory.

    Args:
        op: a ``torch._ops.OpOverload``.

    Returns:
        whether it is a view, elementwise, or one that makes or moves data.
    """
    name = op._schema.name.removeprefix("aten::")
    return (
        torch.Tag.pointwise in op.tags
        or name in _TAKE_NOTHING
        or name.startswith("_foreach_")
        or not any(result.alias_info is None for result in op._schema.returns)
    )


def count(table: dict[str, Unmodelled], op: Any, result: Any) -> None:
    """Note a call of an op without an entry.

    Args:
        table: what was counted so far, by the op's name.
        op: a ``torch._ops.OpOverload``.
        result: what it returned.
    """
    entry = table.setdefault(str(op), Unmodelled())
    entry.calls += 1
    for tensor in result if isinstance(result, (tuple, list)) else (result,):
        if isinstance(tensor, torch.Tensor):
            entry.nbytes += tensor.numel() * tensor.element_size()
