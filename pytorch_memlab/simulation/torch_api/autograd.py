"""Calls that autograd makes: backward passes, and hooks around saved tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch

from ..._common.frames.traceback_frames import without_frames
from ..._common.patching.patches import Patches
from ..dispatch.node_devices import note_outputs, places_of_inputs
from ..machine.machine import Machine

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def install(machine: Machine, patches: Patches) -> None:
    """Let ``backward`` and ``grad`` run as many calls, not as the one that a mode would see."""
    # What hooks do with saved tensors is no part of the call that saves them either.

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
        if args:
            args = (_checked(roots, args[0]), *args[1:])
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


def _checked(roots: tuple[Any, ...], gradients: Iterable[Any]) -> tuple[Any, ...]:
    """``validate_outputs`` of ``torch/csrc/autograd/engine.cpp``, which sees labels of no GPU."""
    gradients = list(gradients)
    for index, (root, gradient) in enumerate(zip(roots, gradients, strict=False)):
        if not isinstance(root, torch.Tensor) or not _is_elsewhere(gradient, root.device):
            continue
        if gradient.dim():
            raise _invalid_gradient("invalid", index, root.device, gradient)
        gradients[index] = gradient.to(root.device)
    return tuple(gradients)


def _is_elsewhere(gradient: Any, device: torch.device) -> bool:
    if type(gradient) not in _PLAIN or gradient.device == device:
        return False
    wraps = torch._C._functorch
    return not (
        wraps.is_functorch_wrapped_tensor(gradient) or wraps.is_legacy_batchedtensor(gradient)
    )


def _invalid_gradient(
    beginning: str, index: int, device: torch.device, gradient: torch.Tensor
) -> RuntimeError:
    return RuntimeError(
        f"{beginning} gradient at index {index} - expected device {device}"
        f" but got {gradient.device}"
    )


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
    forward: Any = vars(torch.autograd.Function)["apply"]  # of C from torch 2.14.1 on

    @functools.wraps(forward)
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = forward.__get__(None, cls)(*args, **kwargs)
        note_outputs(machine, outputs, args)
        return outputs

    patches.set(torch.autograd.Function, "apply", classmethod(without_frames(apply)))
    function: Any = torch.autograd.function.BackwardCFunction
    names = [name for name in ("apply", "apply_boxed") if hasattr(function, name)]

    @patches.around(function, *names)
    def apply_there(apply: Callable[..., Any], self: Any, *gradients: Any) -> Any:
        machine.thread.zero_gradients.clear()
        tensors = [gradient for gradient in gradients if isinstance(gradient, torch.Tensor)]
        several = len(machine.gpus) > 1 and tensors
        with torch.cuda.device_of(tensors[0]) if several else nullcontext():
            returned = apply(self, *gradients)
        _check_returned(self, returned)
        return returned


def _check_returned(node: Any, returned: Any) -> None:
    """Refuse a gradient that is not where its input was, as ``validate_outputs`` does."""
    gradients = returned if isinstance(returned, (tuple, list)) else (returned,)
    for gradient, place in zip(gradients, places_of_inputs(node), strict=False):
        if place is not None and _is_elsewhere(gradient, place.device) and gradient.dim():
            name = f"Function {node.name()} returned an invalid"
            raise _invalid_gradient(name, place.position, place.device, gradient)
