"""The optimizer makes temporaries for all parameters at once."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..._common.patching.patches import Patches
from ..._common.text.prose_size import prose_size
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory
from ..around_program import AroundProgram, Finding, already_used, applied, does_not_apply
from ..cause import Cause, NamedChange, Remedy, Results
from ..changes import EditedSource
from ..evidence import is_in_optimizer, makes_state
from ..lines_to_edit import RunningLine, user_lines, with_keywords
from ..rewriting import (
    changed_code,
    changed_source,
    name_of_call,
    nodes_of,
    rewritings,
    set_keywords,
)

if TYPE_CHECKING:
    from torch.optim.optimizer import Optimizer

_WITH_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
_FLAGS: Final = {
    "fused": {"fused": True, "foreach": False},
    "foreach": {"foreach": True, "fused": False},
    "for_loop": {"foreach": False, "fused": False},
}
_CHANGES: Final = {
    "fused": "faster steps, sums in another order",
    "foreach": "faster steps",
    "for_loop": "slower steps",
}


@dataclass(slots=True)
class _Made:
    """An optimizer that the program made."""

    name: str
    # ``fused`` and ``foreach`` as the program gave them; those that the class takes
    given: dict[str, bool | None]
    line: RunningLine | None  # that made it; None if the program has no such line
    used: str = ""  # the implementation without the remedy, once it has stepped


class OptimizerImplementation(AroundProgram):
    """One implementation for all optimizers of ``torch.optim`` that have it."""

    def __init__(self, kind: str) -> None:
        self.name = kind
        self.what_it_changes = _CHANGES[kind]
        self._flags = _FLAGS[kind]
        self._main_flag = next(iter(self._flags))  # that a class must take
        self._made: dict[int, _Made] = {}
        self._others: dict[str, None] = {}
        self._is_making = False

    def patch(self, patches: Patches) -> None:
        import torch
        from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

        patches.before_undo(register_optimizer_step_pre_hook(self._before_step).remove)
        for kind in vars(torch.optim).values():
            is_optimizer = isinstance(kind, type) and issubclass(kind, Optimizer)
            if is_optimizer and "foreach" in inspect.signature(kind.__init__).parameters:
                patches.around(kind, "__init__")(self._init)

    def finding(self) -> Finding:
        stepped = [made for made in self._made.values() if made.used]
        able = [made for made in stepped if self._main_flag in made.given]
        changed = [made for made in able if made.used != self.name]
        if changed:
            flags = ", ".join(f"{flag}={it}" for flag, it in self._keywords(changed[0]).items())
            code = f"torch.optim.{changed[0].name}(..., {flags})"
            return applied([code], [self._edit(made) for made in changed])
        if able:
            how = "by default" if able[0].given[self._main_flag] is None else "already"
            return already_used(f"{able[0].name} is {self.name} {how}")
        names = list(dict.fromkeys([*(made.name for made in stepped), *self._others]))
        if names:
            return does_not_apply(f"{', '.join(names)}: no {self.name} implementation")
        return does_not_apply("no optimizer takes a step")

    def _keywords(self, made: _Made) -> dict[str, str]:
        """The keyword arguments as a person writes them: what the program leaves out stays out."""
        return {name: str(value) for name, value in self._forced(made.given).items()}

    def _edit(self, made: _Made) -> Any:
        if made.line is None:
            return None
        return with_keywords(made.line, made.name, self._keywords(made))

    def _init(
        self, original: Callable[..., None], optimizer: Optimizer, *args: Any, **kwargs: Any
    ) -> None:
        parameters = inspect.signature(original).parameters
        flags = {name: kwargs.get(name) for name in self._flags if name in parameters}
        if self._is_making or self._main_flag not in flags:
            if not self._is_making:
                self._others[type(optimizer).__name__] = None
            original(optimizer, *args, **kwargs)
            return
        line = next(iter(user_lines()), None)
        self._made[id(optimizer)] = _Made(type(optimizer).__name__, flags, line)
        self._is_making = True
        try:
            original(optimizer, *args, **{**kwargs, **self._forced(flags)})
        finally:
            self._is_making = False

    def _forced(self, flags: dict[str, bool | None]) -> dict[str, bool]:
        return {
            name: self._flags[name]
            for name, value in flags.items()
            if name == self._main_flag or value is not None
        }

    def _before_step(self, optimizer: Optimizer, *_arguments: Any) -> None:
        made = self._made.get(id(optimizer))
        if made is None:
            self._others[type(optimizer).__name__] = None
        elif not made.used:
            made.used = _implementation(made.given, optimizer)


def _implementation(flags: dict[str, bool | None], optimizer: Optimizer) -> str:
    """The implementation that an optimizer runs with the flags of the program."""
    from torch.optim import optimizer as torch_optimizer

    fused, foreach = flags.get("fused"), flags.get("foreach")
    if fused is None and foreach is None:
        parameters = [
            parameter for group in optimizer.param_groups for parameter in group["params"]
        ]
        differentiable = optimizer.defaults.get("differentiable", False)
        _, foreach = torch_optimizer._default_to_fused_or_foreach(parameters, differentiable)
    if fused:
        return "fused"
    return "foreach" if foreach else "for_loop"


class OptimizerTemporaries(Cause):
    """A step of a foreach implementation makes temporaries for all parameters."""

    name = "temporaries of the optimizer"
    order = 160
    results = Results.ROUNDING
    tried_by_name = tuple(
        NamedChange(kind, partial(OptimizerImplementation, kind)) for kind in _FLAGS
    )

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        if not is_in_optimizer(oom) or makes_state(oom):
            return None
        for optimizer in oom.optimizers:
            if optimizer.uses_foreach:
                kind = "fused" if optimizer.name in _WITH_FUSED else "for_loop"
                flag = "fused=True" if kind == "fused" else "foreach=False"
                size = oom.of_category(Category.TEMPORARIES) + oom.request.requested
                size = max(size, optimizer.parameters)
                change = _without_foreach(oom, optimizer.name, is_fused=kind == "fused")
                return self.found(
                    # The peak moves to the backward pass, and a loop still makes those of one
                    # parameter at a time.
                    size * 3 // 4 if kind == "fused" else size // 2,
                    f"{optimizer.name} makes temporaries for all parameters: {prose_size(size)}",
                    *(
                        changed_code(change)
                        or [f"torch.optim.{optimizer.name}(parameters, {flag})"]
                    ),
                    change=change or OptimizerImplementation(kind),
                )
        return None


def _without_foreach(oom: OutOfMemory, name: str, *, is_fused: bool) -> EditedSource | None:
    """The program with another implementation of an optimizer that it makes at one place."""
    calls = [
        (file, call)
        for file in rewritings(oom)
        for call in nodes_of(file.tree, ast.Call)
        if name_of_call(call) == name
    ]
    if len(calls) != 1:
        return None
    [(file, call)] = calls
    if is_fused:
        set_keywords(file, call, fused="True", foreach=None)
    else:
        set_keywords(file, call, foreach="False")
    return changed_source(file)
