"""Copies between the CPU and simulated GPUs; gradients are copied back."""

from __future__ import annotations

from typing import Any

import torch
from torch._C import _functorch as functorch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..._common.frames.traceback_frames import passes_on
from ..._common.torch.storages import storages_of
from ..machine.machine import Machine
from ..machine.simulated_gpu import SimulatedGPU

_CPU = torch.device("cpu")
_to = torch._C.TensorBase.to


class _Transfer(torch.autograd.Function):
    """A copy to another device; its gradient goes back to where the input was."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        tensor: torch.Tensor,
        machine: Machine,
        target: SimulatedGPU | None,
        options: dict[str, Any],
    ) -> torch.Tensor:
        return _copy(machine, tensor, target, options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        tensor, ctx.machine, ctx.target, _options = inputs
        ctx.source = ctx.machine.gpu_of(tensor)
        ctx.dtype = tensor.dtype

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        back = move(ctx.machine, gradient, ctx.source, {"dtype": ctx.dtype})
        ctx.machine.thread.last_gpu = ctx.source
        return back, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_others: None) -> torch.Tensor:
        return move(ctx.machine, tangent, ctx.target, {})


def move(
    machine: Machine, tensor: torch.Tensor, target: SimulatedGPU | None, options: dict[str, Any]
) -> torch.Tensor:
    """A tensor on a device; NotImplementedError for a tensor on the meta device."""
    if tensor.is_meta and not _wraps_others(tensor):
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")
    if machine.gpu_of(tensor) is target and not functorch.is_legacy_batchedtensor(tensor):
        return _to(tensor, **{"dtype": tensor.dtype, **options})
    options = {"dtype": tensor.dtype, **options, "copy": True}
    if torch.is_grad_enabled() and tensor.requires_grad:
        moved: torch.Tensor = _Transfer.apply(tensor, machine, target, options)  # type: ignore[no-untyped-call]
        return moved
    return _copy(machine, tensor, target, options)


def _wraps_others(tensor: Any) -> bool:
    return is_traceable_wrapper_subclass(tensor)


@passes_on
def _copy(
    machine: Machine, tensor: torch.Tensor, target: SimulatedGPU | None, options: dict[str, Any]
) -> torch.Tensor:
    with machine.thread.device_override(_CPU if target is None else target.device):
        copied = _to(tensor, **options)
    if target is None and options.get("non_blocking") and copied.layout is torch.strided:
        for storage in storages_of(copied):
            machine.pin(storage)
    return copied
