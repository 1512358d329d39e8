"""Compiled graphs save activations for backward, of which they can compute more again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import CodeType
from typing import Any

from ..._common.compiled_code import Frames, RunFollower, compiled_code
from ..._common.patches import Patches
from ..._common.prose_size import prose_size
from ...errors import UsageError
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory
from ..around_program import AroundProgram, Finding, already_used, applied, does_not_apply
from ..cause import Basis, Cause, NamedChange, Remedy, saves
from ..evidence import is_much
from ..repeated_blocks import outermost

_OPTION = "activation_memory_budget"
_WHOLE = 1.0
"""The budget of a program that does not set it: what the partitioner saves by itself."""


class _Backward:
    """Sees whether a compiled graph of a backward pass runs."""

    has_run = False

    def replaced(self, code: CodeType, generated: CodeType, is_start: bool) -> None: ...

    def compiling(self) -> AbstractContextManager[None]:
        return nullcontext()

    def begin(self, _lines: frozenset[Frames], is_hit: bool) -> RunFollower:
        self.has_run = self.has_run or not is_hit
        return self

    def at(self, _frames: Frames) -> None: ...

    def end(self) -> None: ...


class MemoryBudget(AroundProgram):
    """Compiled graphs save a part of what they would save, and compute the rest again."""

    what_it_changes = "time: what is not saved is computed a second time"

    def __init__(self, value: str) -> None:
        try:
            self._budget = float(value)
        except ValueError:
            self._budget = -1.0
        if not 0 <= self._budget <= _WHOLE:
            raise UsageError(f"memory_budget=X takes a part from 0 to 1, not {value}")
        self.name = f"memory_budget={self._budget:g}"

    @contextmanager
    def applied(self) -> Iterator[None]:
        from torch._functorch import config

        self._backward = _Backward()
        self._own = getattr(config, _OPTION)
        compiled_code.follow(self._backward)
        try:
            with config.patch({_OPTION: self._budget}):
                yield
        finally:
            compiled_code.followers.remove(self._backward)

    def finding(self) -> Finding:
        from torch._functorch import config

        if getattr(config, _OPTION) != self._budget or self._own != _WHOLE:
            return already_used("the program sets it")
        if not self._backward.has_run:
            return does_not_apply("no compiled graph has a backward pass")
        return applied(_code(self._budget))


def _code(budget: float) -> list[str]:
    return [
        "import torch._functorch.config",
        f"torch._functorch.config.{_OPTION} = {budget:g}  # before the first compiled call",
    ]


class Compiled(AroundProgram):
    """The outermost modules of a program are compiled when they are called first."""

    name = "compile"
    what_it_changes = "faster steps, time to compile, other rounding"

    @contextmanager
    def applied(self) -> Iterator[None]:
        from ...history.module_paths import ModulePaths

        self._code: dict[str, None] = {}
        self._edits: list[Any] = []
        self._is_of_program = False
        modules = ModulePaths(self._called)
        with super().applied():
            modules.begin()
            try:
                yield
            finally:
                modules.end()

    def patch(self, patches: Patches) -> None:
        import torch

        self._compile = torch.nn.Module.compile
        patches.around(torch, "compile")(self._of_program)
        patches.around(torch.nn.Module, "compile")(self._of_program)

    def finding(self) -> Finding:
        if self._is_of_program:
            return already_used("the program compiles")
        if not self._code:
            return does_not_apply("the program calls no module")
        if not compiled_code.is_used:  # compile() leaves modules of PyTorch itself as they are
            return does_not_apply("nothing is compiled by it: write model = torch.compile(model)")
        return applied([*self._code], self._edits)

    def _of_program(self, original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self._is_of_program = True
        return original(*args, **options)

    def _called(self, module: Any) -> None:
        from ..program_lines import model_variable

        model = outermost(module)
        if self._is_of_program or model is not module or model._compiled_call_impl is not None:
            return
        variable = model_variable(model)
        line = f"{variable.name}.compile()"
        self._compile(model)
        self._code[line] = None
        self._edits.append(variable.with_code([line]))


class CompiledActivations(Cause):
    """The forward passes of compiled graphs save activations."""

    name = "activations of compiled graphs"
    order = 188
    scales_with_batch = True
    tried_by_name = (
        NamedChange("compile", Compiled, is_by_default=False),
        NamedChange(
            "memory_budget",
            MemoryBudget,
            *("0.5", "X"),
            more=("0.75", "0.25", "0"),
            is_by_default=False,
        ),
    )

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        saved = oom.of_category(Category.SAVED)
        if not compiled_code.is_used or not is_much(saved, oom):
            return None
        size = saved // 2
        return self.found(
            size,
            f"compiled graphs saved {prose_size(saved)} for backward",
            *_code(0.5),
            basis=Basis.ESTIMATED,
            effect=saves(size),
            change=MemoryBudget("0.5"),
        )
