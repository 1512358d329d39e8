"""``torch.cuda.sparse``: legacy types to ask for; PyTorch itself makes no more of them."""

from __future__ import annotations

from typing import Any

import torch

from ..._common.patches import Patches
from ..machine.machine import Machine
from ..machine.unsupported import refusal


class _SparseType(type):
    """``isinstance(x, torch.cuda.sparse.FloatTensor)`` asks for a sparse tensor on a GPU."""

    dtype: torch.dtype
    machine: Machine

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.layout is torch.sparse_coo
            and instance.dtype == cls.dtype
            and cls.machine.gpu_of(instance) is not None
        )


def install(machine: Machine, patches: Patches) -> None:
    """Put the types into ``torch.cuda.sparse`` until undone."""
    for name, kind in vars(torch.cuda.sparse).copy().items():
        dtype: Any = getattr(kind, "dtype", None)
        if isinstance(dtype, torch.dtype):
            new = refusal(f"torch.cuda.sparse.{name}")
            members = {"__new__": new, "dtype": dtype, "machine": machine, "is_sparse": True}
            patches.set(torch.cuda.sparse, name, _SparseType(name, (), members))
