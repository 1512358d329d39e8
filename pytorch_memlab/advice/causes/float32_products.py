"""Matrix products and their activations are in float32, and could be in bfloat16.

Note [Where autocast ends]
PyTorch recommends autocast for the forward pass and the loss, not for the backward pass. So it
begins with the outermost module that is called, and ends where the backward pass begins. A module
that is called without gradients has it for that call alone.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..._common.patching.patches import Patches
from ..._common.text.prose_size import prose_size
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory
from ..around_program import AroundProgram, Edit, Finding, already_used, applied, does_not_apply
from ..cause import Basis, Cause, NamedChange, Remedy, Results, saves
from ..evidence import is_much
from ..forward_in_half import refuses_autocast, with_option
from ..lines_to_edit import RunningLine, around_statements, has_name, runs_module, user_lines
from ..rewriting import changed_code

if TYPE_CHECKING:
    import torch
    from torch import nn

_OPENING: Final = 'with torch.autocast("cuda", dtype=torch.bfloat16):'
_CODE: Final = (_OPENING, "    loss = ...  # the forward pass, without backward()")

_OF_LIGHTNING: Final = 'Trainer(..., precision="bf16-mixed")'
_TRAINERS: Final = {
    "transformers.trainer": "TrainingArguments(..., bf16=True)",
    "lightning.pytorch.trainer.trainer": _OF_LIGHTNING,
    "pytorch_lightning.trainer.trainer": _OF_LIGHTNING,
}
"""Modules of training loops, with the option for it."""

_Lines = tuple[RunningLine, ...]


class _Region(threading.local):
    """The forward pass that a thread runs."""

    def __init__(self) -> None:
        self.cast: torch.autocast | None = None
        self.lines: _Lines = ()
        self.depth = 0
        self.is_backward = False


class Autocast(AroundProgram):
    """Forward passes run under ``torch.autocast`` to bfloat16. See the note above."""

    name = "autocast_bf16"
    what_it_changes = "matrix products in bfloat16, parameters in float32"

    def patch(self, patches: Patches) -> None:
        import torch.utils.checkpoint

        self._region = _Region()
        self._alone: dict[_Lines, None] = {}
        self._until_backward: dict[tuple[_Lines, _Lines], None] = {}
        self._half: str | None = None
        self._is_of_program = self._is_ours = False
        self._option = ""
        patches.around(torch.nn.Module, "__call__")(self._module_call)
        patches.around(torch.utils.checkpoint, "checkpoint")(self._checkpoint_call)
        patches.around(torch.autograd, "backward", "grad")(self._backward_call)
        patches.around(torch.autocast, "__enter__")(self._autocast_enter)
        patches.before_undo(lambda: self._leave(()))

    def finding(self) -> Finding:
        if self._is_of_program:
            return already_used("the program uses autocast")
        if not self._alone and not self._until_backward:
            if self._half is not None:
                return already_used(f"the parameters are {self._half}")
            return does_not_apply("the program calls no module on a GPU")
        if self._option:
            return applied([self._option])
        edits = [_edit(begin, end) for begin, end in self._until_backward]
        edits += [_edit(lines, None) for lines in self._alone]
        return applied(_CODE, edits)

    def _module_call(
        self, original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any
    ) -> Any:
        import torch

        region = self._region
        is_alone = self._began_with(module) and not torch.is_grad_enabled()
        region.depth += 1
        try:
            return original(module, *args, **kwargs)
        finally:
            region.depth -= 1
            if is_alone:
                self._alone[region.lines] = None
                self._leave(())

    def _checkpoint_call(
        self, original: Callable[..., Any], function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        import torch

        # Its second run has the autocast of this moment, not the one that begins in the module.
        # Without gradients there is none, and the module begins a pass that ends with it.
        for module in _modules_of(function) if torch.is_grad_enabled() else ():
            if self._began_with(module):
                break
        return original(function, *args, **kwargs)

    def _began_with(self, module: nn.Module) -> bool:
        """Begin a forward pass with a module if it is the outermost and wants it, and say so."""
        region = self._region
        if region.depth or region.is_backward or not self._wants(module):
            return False
        self._enter(user_lines())
        return True

    def _wants(self, module: nn.Module) -> bool:
        """True if a module begins a forward pass in float32 on a GPU."""
        import torch

        if self._region.cast is not None:
            return False
        if torch.is_autocast_enabled("cuda"):
            self._is_of_program = True
            return False
        parameters = [parameter for parameter in module.parameters() if parameter.is_cuda]
        floats = [parameter.dtype for parameter in parameters if parameter.is_floating_point()]
        if floats and all(dtype in (torch.float16, torch.bfloat16) for dtype in floats):
            self._half = str(floats[0]).removeprefix("torch.")
            return False
        return bool(floats)

    def _enter(self, lines: _Lines) -> None:
        import torch

        region = self._region
        region.cast, region.lines = torch.autocast("cuda", dtype=torch.bfloat16), lines
        self._is_ours = True
        self._option = self._option or next(
            (option for module, option in _TRAINERS.items() if runs_module(module)), ""
        )
        try:
            region.cast.__enter__()
        finally:
            self._is_ours = False

    def _leave(self, lines: _Lines) -> None:
        """The forward pass is over; ``lines`` begin the backward pass."""
        region = self._region
        cast, region.cast = region.cast, None
        if cast is not None:
            cast.__exit__(None, None, None)
            if lines:
                self._until_backward[region.lines, lines] = None

    def _backward_call(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        region = self._region
        if not region.is_backward:
            self._leave(user_lines())
        before, region.is_backward = region.is_backward, True
        try:
            return original(*args, **kwargs)
        finally:
            region.is_backward = before

    def _autocast_enter(self, original: Callable[..., Any], cast: Any) -> Any:
        is_programs = not self._is_ours and not self._region.is_backward
        if is_programs and cast.device == "cuda" and cast._enabled:
            self._is_of_program = True
        return original(cast)


def _modules_of(function: Any) -> Iterator[nn.Module]:
    """A module that is called, or those that a function such as a lambda has by name."""
    import torch

    owner = getattr(function, "__self__", function)
    if isinstance(owner, torch.nn.Module):
        yield owner
    elif inspect.isfunction(function):
        names = inspect.getclosurevars(function)
        for value in (*names.nonlocals.values(), *names.globals.values()):
            if isinstance(value, torch.nn.Module):
                yield value


def _edit(begin: _Lines, end: _Lines | None) -> Edit | None:
    """The statements of a forward pass under autocast, in the function that has both ends."""
    if not begin:
        return None
    first, after = begin[0], None
    if end is not None:
        functions = {(line.file, line.first): line for line in end}
        ends = [line for line in begin if (line.file, line.first) in functions]
        if not ends:
            return None
        first = ends[0]
        after = functions[first.file, first.first]
    opening = [_OPENING] if has_name(first, "torch") else ["import torch", _OPENING]
    return around_statements(first, after, opening)


class Float32Products(Cause):
    """Nothing is wrong, and half as many bytes would do for most activations."""

    name = "products in float32"
    order = 195
    results = Results.BFLOAT16
    scales_with_batch = True
    is_last_resort = True
    tried_by_name = (NamedChange("autocast_bf16", Autocast),)

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        whole = sum(
            block.size
            for block in oom.blocks
            if block.category is Category.SAVED and block.dtype == "float32"
        )
        if not oom.model.float32 or not is_much(whole, oom) or refuses_autocast(oom):
            return None
        # Losses and normalisations stay in float32.
        size = whole // 3 - _casts_of_weights(oom)
        if size <= 0:
            return None
        why = f"activations in float32 take {prose_size(whole)}"
        with_code = partial(self.found, size, why, basis=Basis.ESTIMATED, effect=saves(size))
        around = with_code(*_CODE, change=Autocast())
        option = with_option(oom)
        if option is None:
            return around
        return replace(with_code(*changed_code(option), change=option), otherwise=around)


def _casts_of_weights(oom: OutOfMemory) -> int:
    """The bytes of weights in bfloat16 that autocast may add at a time."""
    # It keeps those of leaves that require a gradient until it ends, and makes others for a call:
    # ``cached_cast`` in ``aten/src/ATen/autocast_mode.cpp``.
    weights = [
        block.size
        for block in oom.blocks
        if block.category is Category.PARAMETERS and block.dtype == "float32"
    ]
    return max(sum(weights) - oom.model.frozen, 0) // 2 + max(weights, default=0) // 2
