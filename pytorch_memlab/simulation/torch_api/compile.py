"""``torch.compile`` under simulation: the function itself, with a word about it."""

from __future__ import annotations

import functools
import sys
import warnings
from typing import Any

import torch

from ..._common.patches import Patches
from ..dispatch import fused_flex_attention
from ..machine.machine import Machine


def install(_machine: Machine, patches: Patches) -> None:
    """Let what is compiled run eagerly, until undone; the first compilation warns of that.

    ``torch.compile`` and ``Module.compile`` give back what they get, but for ``flex_attention``
    (Note [Fused flex_attention]). What was compiled before runs
    eagerly too, from torch 2.6 on.
    """
    compiler = _EagerCompiler()
    patches.set(torch, "compile", compiler.compile)
    patches.set(
        torch.nn.Module, "compile", lambda _module, *_arguments, **_options: compiler.warn()
    )
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is not None and hasattr(frames, "DynamoStance"):
        patches.set(frames, "_stance", frames.DynamoStance("force_eager"))
    # torch._inductor.cudagraph_trees imports both where CUDA is built in; torch._dynamo.reset()
    # imports it.
    for name, value in (
        ("_cuda_CUDAAllocator_AllocatorState", _AllocatorState),
        ("_set_cached_tensors_enabled", lambda _enabled: None),
    ):
        if not hasattr(torch._C, name):
            patches.set(torch._C, name, value)


class _AllocatorState:
    """Saved state of a CUDA graph's private pool, of which there are none."""


class _EagerCompiler:
    """Compiles nothing, and says so once."""

    def __init__(self) -> None:
        self._has_warned = False

    def compile(self, model: Any = None, **options: Any) -> Any:
        """The argument of ``torch.compile`` itself, or a decorator that returns its argument."""
        if model is None:
            return functools.partial(self.compile, **options)
        fused = fused_flex_attention.compiled(model)
        if fused is not None:
            return fused
        self.warn()
        return model

    def warn(self) -> None:
        """Warn, at the first call."""
        if self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            "torch.compile runs eagerly under simulation: the compiler's own memory is not"
            " simulated",
            stacklevel=3,
        )
