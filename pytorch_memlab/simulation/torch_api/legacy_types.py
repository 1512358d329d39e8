"""``torch.cuda.FloatTensor`` and its kind: constructors, types to ask for, names to convert to.

Those of ``torch.cuda.sparse`` can be asked for; PyTorch itself makes no more of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..._common.patches import Patches
from ..machine.machine import Machine
from ..machine.unsupported import refusal

_DTYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}


def dtype_of(kind: Any) -> torch.dtype | None:
    """The dtype that a legacy type, or its name, stands for; None for anything else."""
    if type(kind) is _LegacyType:
        return kind.dtype
    if isinstance(kind, str) and kind.startswith("torch.cuda."):
        return _DTYPES.get(kind.rpartition(".")[2])
    return None


def install(machine: Machine, patches: Patches) -> None:
    for name, dtype in _DTYPES.items():
        members = {"__new__": _constructor(machine, dtype), "dtype": dtype, "machine": machine}
        patches.set(torch.cuda, name, _LegacyType(name, (), members))
    for name, kind in vars(torch.cuda.sparse).copy().items():
        if isinstance(getattr(kind, "dtype", None), torch.dtype):
            new = refusal(f"torch.cuda.sparse.{name}")
            members = {"__new__": new, "dtype": kind.dtype, "machine": machine, "is_sparse": True}
            patches.set(torch.cuda.sparse, name, _LegacyType(name, (), members))

    @patches.around(torch._C, "_set_default_tensor_type")
    def set_default(original: Callable[[Any], None], kind: Any) -> None:
        dtype = dtype_of(kind)
        if dtype is None:
            original(kind)
            torch.set_default_device(None)
        elif not dtype.is_floating_point:
            raise TypeError("only floating-point types are supported as the default type")
        else:
            torch.set_default_dtype(dtype)
            torch.set_default_device("cuda")


class _LegacyType(type):
    """``isinstance(x, torch.cuda.FloatTensor)`` asks for a dtype, and a layout, on a GPU."""

    dtype: torch.dtype
    machine: Machine
    is_sparse = False

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.dtype == cls.dtype
            and (not cls.is_sparse or instance.layout is torch.sparse_coo)
            and cls.machine.gpu_of(instance) is not None
        )


def _constructor(machine: Machine, dtype: torch.dtype) -> Any:
    def new(cls: Any, *args: Any, device: Any = None) -> torch.Tensor:
        gpu = machine.find_gpu(device)
        if gpu is None:
            raise RuntimeError(
                "legacy constructor expects device type: cuda but device type: "
                f"{torch.device(device).type} was passed"
            )
        if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
            return torch.tensor(args[0], dtype=dtype, device=gpu.device)
        sizes = args[0] if args and isinstance(args[0], torch.Size) else args or (0,)
        return torch.empty(tuple(sizes), dtype=dtype, device=gpu.device)

    return new
