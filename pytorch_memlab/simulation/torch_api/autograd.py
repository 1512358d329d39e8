"""Calls that autograd makes: backward passes, and hooks around saved tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch

from ..._common.patches import Patches
from ..dispatch.node_devices import note_outputs
from ..machine.machine import Machine


def install(machine: Machine, patches: Patches) -> None:
    """Let ``backward`` and ``grad`` run as many calls, not as the one that a mode would see.

    What hooks do with saved tensors is no part of the call that saves them either.
    """

    @patches.around(torch._C._autograd, "_push_saved_tensors_default_hooks")
    def push_hooks(push: Callable[..., None], *hooks: Callable[[Any], Any]) -> None:
        push(*(_on_its_own(machine, hook) for hook in hooks))

    @patches.around(torch.autograd, "has_torch_function")
    def has_torch_function(_has: Any, tensors: Iterable[Any]) -> bool:
        return torch._C._is_torch_function_enabled() and any(
            _overrides_functions(type(tensor)) for tensor in tensors
        )

    @patches.around(torch.autograd, "_engine_run_backward")
    def run_backward(
        run: Callable[..., Any], roots: Iterable[Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Afterwards the thread uses the streams again that it used before."""
        thread = machine.thread
        changes, gpu = thread.streams, thread.last_gpu
        roots = tuple(roots)
        streams, outer = changes.current, changes.begin_backward(roots)
        for root in roots:
            if isinstance(root, torch.Tensor):
                thread.last_gpu = machine.gpu_of(root)
        try:
            return run(roots, *args, **kwargs)
        finally:
            thread.last_gpu = gpu
            machine.use_streams(streams)
            changes.end_backward(outer)

    _install_custom_functions(machine, patches)


def _on_its_own(machine: Machine, hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(hook)
    def run(value: Any) -> Any:
        with machine.thread.call_context((), {}):
            return hook(value)

    return run


def _overrides_functions(kind: type) -> bool:
    """True if a class of tensors defines ``__torch_function__``."""
    own = getattr(kind, "__torch_function__", torch._C._disabled_torch_function_impl)
    if own is torch._C._disabled_torch_function_impl:
        return False
    default: Any = torch.Tensor.__torch_function__
    return getattr(own, "__func__", own) is not default.__func__


def _install_custom_functions(machine: Machine, patches: Patches) -> None:
    """Let backward passes of custom functions use the GPU of their gradients."""
    forward = torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]

    @functools.wraps(forward)
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = forward(cls, *args, **kwargs)
        note_outputs(machine, outputs)
        return outputs

    patches.set(torch.autograd.Function, "apply", classmethod(apply))
    function: Any = torch.autograd.function.BackwardCFunction
    names = [name for name in ("apply", "apply_boxed") if hasattr(function, name)]

    @patches.around(function, *names)
    def apply_there(apply: Callable[..., Any], self: Any, *gradients: Any) -> Any:
        machine.thread.zero_gradients.clear()
        if len(machine.gpus) == 1:
            return apply(self, *gradients)
        tensors = [one for one in gradients if isinstance(one, torch.Tensor)]
        with torch.cuda.device_of(tensors[0]) if tensors else nullcontext():
            return apply(self, *gradients)
