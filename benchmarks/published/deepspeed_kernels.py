"""DeepSpeed's optimizers without their kernels, which need a compiler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def _nothing(*_arguments: Any) -> None:
    """Updates in place, and takes no memory."""


def replace_kernels() -> None:
    """Let DeepSpeed's optimizers call kernels that do nothing; states and steps are theirs."""
    from deepspeed.ops.op_builder import CPUAdamBuilder, FusedAdamBuilder

    kernels = ("multi_tensor_adam", "create_adam", "adam_update", "destroy_adam")
    module = SimpleNamespace(**dict.fromkeys(kernels, _nothing))
    for builder in (FusedAdamBuilder, CPUAdamBuilder):
        builder.load = lambda _builder, **_settings: module
