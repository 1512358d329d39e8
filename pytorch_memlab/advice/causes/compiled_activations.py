"""Compiled graphs save activations for backward, of which they can compute more again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import CodeType
from typing import Any

from ..._common.frames.compiled_code import Frames, GraphFlops, RunFollower, compiled_code
from ..._common.patching.patches import Patches
from ..._common.text.prose_size import prose_size
from ..._common.torch.optimizer_steps import after_each_step
from ...errors import UsageError
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory
from ..around_program import (
    AroundProgram,
    Finding,
    Outcome,
    already_used,
    applied,
    does_not_apply,
)
from ..cause import Basis, Cause, NamedChange, Remedy, saves
from ..evidence import is_much
from ..repeated_blocks import outermost

_OPTION = "activation_memory_budget"
_WHOLE = 1.0
"""The budget of a program that does not set it: what the partitioner saves by itself."""


@dataclass(frozen=True, slots=True)
class Recomputed(Finding):
    """The result for a program whose compiled graphs compute a part of themselves again."""

    flops: int = 0  # operations that a step computes a second time
    step_flops: int = 0  # the others of its compiled graphs


class _Runs:
    """Follows the runs of compiled graphs."""

    def __init__(self) -> None:
        self.has_backward = False
        self._total = self._before = self._last = GraphFlops()

    @property
    def flops(self) -> GraphFlops:
        """Of the last step that ran a graph; without any step, of all so far."""
        return self._last if self._last.whole else self._total

    def step(self, _optimizer: object) -> None:
        """An optimizer has ended a step."""
        step = _added(self._total, self._before, -1)
        self._last = step if step.whole else self._last
        self._before = self._total

    def replaced(self, code: CodeType, generated: CodeType, is_start: bool) -> None: ...

    def compiling(self) -> AbstractContextManager[None]:
        return nullcontext()

    def begin(
        self, _lines: frozenset[Frames], is_hit: bool, flops: Callable[[], GraphFlops]
    ) -> RunFollower:
        self.has_backward = self.has_backward or not is_hit
        self._total = _added(self._total, flops())
        return self

    def at(self, _frames: Frames) -> None: ...

    def end(self) -> None: ...


def _added(flops: GraphFlops, others: GraphFlops, sign: int = 1) -> GraphFlops:
    return GraphFlops(*(number + sign * other for number, other in zip(flops, others, strict=True)))


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

        self._runs = _Runs()
        self._own = getattr(config, _OPTION)
        compiled_code.follow(self._runs)
        try:
            with config.patch({_OPTION: self._budget}), after_each_step(self._runs.step):
                yield
        finally:
            compiled_code.followers.remove(self._runs)

    def finding(self) -> Finding:
        from torch._functorch import config

        if getattr(config, _OPTION) != self._budget or self._own != _WHOLE:
            return already_used("the program sets it")
        if not self._runs.has_backward:
            return does_not_apply("no compiled graph has a backward pass")
        whole, second = self._runs.flops
        return Recomputed(
            Outcome.APPLIED,
            code=tuple(_code(self._budget)),
            flops=second,
            step_flops=whole - second,
        )


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
        from ..lines_to_edit import model_variable

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
