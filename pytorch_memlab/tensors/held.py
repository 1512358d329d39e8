"""Tensors that the program holds, told from those that only C++ still holds."""

from __future__ import annotations

import sys
from typing import Any

import torch


def not_held(tensors: list[torch.Tensor]) -> set[int]:
    """Tensors that C++ holds, and no variable of the program.

    A tensor's Python object lives on for as long as C++ holds the tensor: as what a graph saved,
    as the base of a view. It is found like any other, but the program let go of it long ago.
    """
    least = _references_when_not_held()
    return {
        id(tensor)
        for tensor, count in zip(tensors, _references(tensors), strict=True)
        if count <= least and _held_by_cpp(tensor)
    }


def _references(tensors: list[torch.Tensor]) -> list[int]:
    return [sys.getrefcount(tensor) for tensor in tensors]


def _held_by_cpp(tensor: torch.Tensor) -> bool:
    base: Any = torch._C.TensorBase  # whose method no subclass can hide
    with torch._C.DisableTorchFunctionSubclass():
        return bool(base._use_count(tensor) > 1)


def _references_when_not_held() -> int:
    """Reference count of a tensor that only C++ holds, measured on the base of a tiny view."""
    with torch.inference_mode(False), torch.enable_grad():
        view: Any = torch.ones((), device="cpu").view(1)
    return _references([view._base])[0]
