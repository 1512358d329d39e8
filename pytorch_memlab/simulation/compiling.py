"""``torch.compile`` under simulation: the function itself, with a word about it."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .patches import Patches


def install(patches: Patches) -> None:
    """Let ``torch.compile`` and ``Module.compile`` give back what they get, until undone.

    Args:
        patches: who puts the originals back.
    """
    patches.set(torch, "compile", _compile)
    patches.set(torch.nn.Module, "compile", _compile_module)


def _compile(model: Any = None, **options: Any) -> Any:
    if model is None:
        return functools.partial(_compile, **options)
    _warn()
    return model


def _compile_module(self: torch.nn.Module, *_arguments: Any, **_options: Any) -> None:
    _warn()


def _warn() -> None:
    warnings.warn(
        "torch.compile runs eagerly under simulation: the compiler's own memory is not simulated",
        stacklevel=3,
    )
