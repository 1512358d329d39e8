"""PyTorch's samples of its operators (``OpInfo``), and their arguments on a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map

from pytorch_memlab.errors import UnmodelledOpError, UnsupportedCUDACallError

SEED = 1234

REFUSALS = (UnsupportedCUDACallError, UnmodelledOpError)
"""Errors that name what a simulated GPU does not have."""

ONLY_ON_A_CPU = frozenset({"sparse.mm.reduce"})
"""Operators without a kernel for CUDA, though their samples name dtypes for it."""

DRIVERS_OF_A_CPU = ("gelsy", "gelsd", "gelss")
"""Of ``linalg.lstsq``; CUDA refuses them."""

TAKES_INDICES_OF_A_CPU = frozenset({"tensor_split"})
"""Operators that refuse other arguments than the first on a GPU."""


def operators() -> list[Any]:
    """PyTorch's ``OpInfo`` of every operator."""
    # The import makes flags such as those of cuDNN read-only, for the rest of the process.
    with torch.backends.__allow_nonbracketed_mutation():
        from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def name_of(op: Any) -> str:
    """The name of an operator, with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def dtypes_of(op: Any) -> set[torch.dtype]:
    """The dtypes that an operator takes on a CPU and on a GPU."""
    if name_of(op) in ONLY_ON_A_CPU:
        return set()
    dtypes: set[torch.dtype] = op.supported_dtypes("cpu") & op.supported_dtypes("cuda")
    return dtypes


def main_dtype(op: Any) -> torch.dtype | None:
    """``float32``, or another dtype of an operator that does not take it; None: it takes none."""
    dtypes = dtypes_of(op)
    return torch.float32 if torch.float32 in dtypes else min(dtypes, key=str, default=None)


def samples_of(op: Any, dtype: torch.dtype) -> list[Any]:
    """The samples of an operator that run on a GPU, on the CPU, the same ones at each call."""
    backward = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    torch.manual_seed(SEED)
    return [
        sample
        for sample in op.sample_inputs("cpu", dtype, requires_grad=backward)
        if sample.kwargs.get("driver") not in DRIVERS_OF_A_CPU
    ]


def placed_arguments(
    op: Any, sample: Any, device: str
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Copies of a sample's arguments on a device: tensors are leaves there."""
    args, kwargs = tree_map(
        lambda value: _placed(value, device), ((sample.input, *sample.args), sample.kwargs)
    )
    if op.name in TAKES_INDICES_OF_A_CPU:
        args = (args[0], *sample.args)
    return args, kwargs


def _placed(value: Any, device: str) -> Any:
    """A sample's value for one side: tensors are leaves there, and a device is that side's."""
    if is_device(value):
        return torch.device(device)
    if not isinstance(value, torch.Tensor):
        return value
    return _copy(value.detach(), device).requires_grad_(value.requires_grad)


def is_device(value: Any) -> bool:
    """True if a value of a sample names its device."""
    return isinstance(value, torch.device) or (isinstance(value, str) and value == "cpu")


def _copy(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A copy of a tensor with the whole of its storage, which ops on strides may reach into."""
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        return tensor.clone().to(device)
    whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    size, stride, offset = tensor.size(), tensor.stride(), tensor.storage_offset()
    return whole.clone().to(device).as_strided(size, stride, offset)


def summary(error: Exception) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
