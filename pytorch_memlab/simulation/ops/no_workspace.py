"""Ops whose CUDA kernels are known to allocate their outputs only."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Final

import torch

_COLLECTIVES: Final = frozenset({"_c10d_functional", "_c10d_functional_autograd"})
"""Namespaces of collectives: NCCL has buffers that serve all of them, counted for none."""


@functools.cache
def ops_without_workspace() -> frozenset[str]:
    """Names of ops, without ``aten::``, that allocate their outputs only."""
    lines = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


def has_no_workspace(op: Any) -> bool:
    """True if the kernels of an op are known to allocate its outputs only.

    Args:
        op: a ``torch._ops.OpOverload``; one that writes to ``out=`` is as the one without.
    """
    if _is_out(op):
        packet = op.overloadpacket
        overloads = (getattr(packet, overload) for overload in packet.overloads())
        return any(has_no_workspace(one) for one in overloads if not _is_out(one))
    name = op._schema.name.removeprefix("aten::")
    return (
        torch.Tag.pointwise in op.tags
        or name in ops_without_workspace()
        or name.startswith("_foreach_")
        or op.namespace in _COLLECTIVES
        or not any(result.alias_info is None for result in op._schema.returns)
    )


def _is_out(op: Any) -> bool:
    return any(argument.is_out for argument in op._schema.arguments)
