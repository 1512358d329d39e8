"""Follows the program while a recording is on: its stacks, modules, optimizers and nodes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from .._common.interrupts.uninterrupted import uninterrupted
from .._common.patching.patches import Patches
from .._common.torch.forward_ops import ForwardOps, OpStack
from .block_categories import (
    Note,
    mark,
    mark_module,
    mark_own_tensors,
    mark_parameters,
    mark_state,
)
from .live_blocks import ProgramState
from .model import Category
from .module_paths import ModulePaths


class ProgramObserver:
    """Follows modules and optimizers between as many ``begin`` as ``end``."""

    def __init__(self) -> None:
        modules = ModulePaths(partial(self._look, mark_module))
        thread = modules.thread

        def stack_of(op: Any) -> OpStack:
            stack = OpStack(op)
            running = thread.calls.running
            if running:
                stack.module = running[-1][1]
            return stack

        self.state = ProgramState(ForwardOps(stack_of), modules)
        self.notes: tuple[Note, ...] = ()
        self._users = 0
        self._hooks: list[Any] = []
        self._patches = Patches()
        self._lock = threading.RLock()

    def begin(self) -> None:
        with self._lock, uninterrupted():
            self._users += 1
            if self._users > 1:
                return
            self._hooks = [
                register_optimizer_step_pre_hook(
                    lambda optimizer, *_: self._look(mark_parameters, optimizer)
                ),
                register_optimizer_step_post_hook(
                    lambda optimizer, *_: self._look(mark_state, optimizer)
                ),
            ]
            self._follow_modules()
            self.state.modules.begin()
            self.state.forward_ops.forget()
            self.state.is_on = True

    def end(self) -> None:
        """One less wants to know; the last one gives everything back."""
        with self._lock, uninterrupted():
            self._users -= 1
            if self._users:
                return
            self.state.is_on = False
            self.state.modules.end()
            self._patches.undo(keeps_later=True)
            for hook in self._hooks:
                hook.remove()
            self._hooks = []
            self.state.forward_ops.forget()

    def _follow_modules(self) -> None:
        """Know what modules hold from the moment they hold it: some die before any of them runs."""
        holds = torch.nn.modules.module
        self._hooks += [
            holds.register_module_parameter_registration_hook(
                lambda _module, _name, parameter: self._look(
                    mark, (parameter,), Category.PARAMETERS
                )
            ),
            holds.register_module_buffer_registration_hook(
                lambda _module, _name, buffer: self._look(mark, (buffer,), Category.BUFFERS)
            ),
        ]

        # ``__setstate__`` has what is copied or unpickled.
        @self._patches.around(torch.nn.Module, "_apply", "__setstate__")
        def convert(
            change: Callable[..., Any], module: torch.nn.Module, *args: Any, **kwargs: Any
        ) -> Any:
            result = change(module, *args, **kwargs)
            if self.state.is_on:
                self._look(mark_own_tensors, module)
            return result

    def gradient_is_replaced(self, gradient: torch.Tensor) -> None:
        """The program gives a tensor another gradient than this one, or none."""
        self._look(mark, (gradient,), Category.GRADIENTS)

    def _look(self, look: Callable[..., None], *seen: Any) -> None:
        """Look at objects of the program, which may be of any class and refuse with any error."""
        with torch._C.DisableTorchFunction():
            for note in self.notes:
                try:
                    look(*seen, note)
                except Exception:
                    continue


program = ProgramObserver()
"""The one program of the process."""
