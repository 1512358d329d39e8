"""The repeated blocks of models: what activation checkpointing and sharding take one by one.

Note [Checkpointing of transformers]
A model of ``transformers`` has a switch for activation checkpointing, which also keeps the blocks
from filling a key-value cache a second time while they are computed again. Where a model has it,
it is used, and its blocks are those that have the flag.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from .lines_to_edit import ModelVariable, model_variable

if TYPE_CHECKING:
    from torch import nn

SWITCHES: Final = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
"""Methods of ``transformers``: that of its newer releases, and that of release 4."""
FLAG: Final = "gradient_checkpointing"
"""Attribute of the blocks of ``transformers`` that the switch sets."""

Named = tuple[str, "nn.Module"]


@dataclass(frozen=True, slots=True)
class BlockModel:
    """A model with repeated blocks."""

    model: nn.Module
    variable: ModelVariable
    blocks: tuple[Named, ...]
    switch: str | None  # path of the module that has a switch; None if there is none

    def names(self, blocks: Sequence[Named]) -> tuple[str, ...]:
        return tuple(expression(self.model, self.variable.name, path) for path, _ in blocks)


class BlockModels:
    """Finds models with repeated blocks while it is on."""

    def __init__(self, take: Callable[[BlockModel], object]) -> None:
        self._found = take
        self._seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.calls_module = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at each outermost module that is called."""
        from ..history.module_paths import ModulePaths

        modules = ModulePaths(self._is_called)
        modules.begin()
        try:
            yield
        finally:
            modules.end()

    def _is_called(self, module: nn.Module) -> None:
        self.calls_module = True
        if module in self._seen:
            return
        model = outermost(module)
        self._seen.update([module, *model.modules()])
        blocks = repeated_blocks(model)
        if not blocks:
            return
        switch = _path_of_switch(model)
        if switch is not None:
            blocks = [block for block in blocks if hasattr(block[1], FLAG)] or blocks
        self._found(BlockModel(model, model_variable(model), tuple(blocks), switch))


def switch_of(module: Any) -> str:
    """Name of the method that checkpoints activations of a module; empty if it has none."""
    return next((flag for flag in SWITCHES if hasattr(module, flag)), "")


def _path_of_switch(model: nn.Module) -> str | None:
    """The outermost module with a switch of ``transformers``."""
    path: str
    for path, module in model.named_modules():
        if getattr(module, "supports_gradient_checkpointing", False) and switch_of(module):
            return path
    return None


def outermost(module: nn.Module) -> nn.Module:
    """The largest module that is alive and has a module in it; often the module itself."""
    import torch

    from ..tensors.live_objects import instances_of

    with torch._C.DisableTorchFunction():
        around = [other for other in instances_of(torch.nn.Module) if _has(other, module)]
    return max(around, key=lambda other: sum(1 for _ in other.modules()), default=module)


def repeated_blocks(model: nn.Module) -> list[Named]:
    """Modules of one class that a model has several of, with their paths."""
    # Those in lists come first, the outermost of them. Without any, other parts of one class count,
    # such as the stages of a U-Net.
    return _repeated(model, lambda _, parent: isinstance(parent, _containers())) or _repeated(
        model, lambda module, _: not type(module).__module__.startswith("torch.")
    )


def _containers() -> tuple[type[nn.ModuleList], type[nn.Sequential], type[nn.ModuleDict]]:
    """Those that count their parts come first."""
    from torch import nn

    return nn.ModuleList, nn.Sequential, nn.ModuleDict


def in_code(model: nn.Module, name: str, paths: Sequence[str]) -> str:
    """Blocks as a program writes them: ``model.blocks[:12]``."""
    parents: dict[str, list[str]] = {}
    for path in paths:
        parent, _, last = path.rpartition(".")
        parents.setdefault(parent, []).append(last)
    parts = [_of_parent(model, name, parent, lasts) for parent, lasts in parents.items()]
    if len(parts) == 1:
        return parts[0].removeprefix("*")
    return f"[{', '.join(parts)}]"


def expression(model: nn.Module, name: str, path: str) -> str:
    """A module as a program writes it: ``model.stages[0].blocks``."""
    text, module = name, model
    for part in path.split(".") if path else ():
        if isinstance(module, _containers()):
            text += f"[{part!r}]" if isinstance(module, _containers()[2]) else f"[{part}]"
        else:
            text += f".{part}"
        module = module.get_submodule(part)
    return text


def _of_parent(model: nn.Module, name: str, parent: str, lasts: Sequence[str]) -> str:
    """Some children of one module: an expression of all of them, after a star."""
    module = model.get_submodule(parent)
    here = expression(model, name, parent)
    if not isinstance(module, _containers()[:2]):
        return ", ".join(expression(model, name, f"{parent}.{last}".lstrip(".")) for last in lasts)
    numbers = list(map(int, lasts))
    first, last = numbers[0], numbers[-1]
    if numbers == list(range(len(module))):
        return f"*{here}"
    if numbers == list(range(first, last + 1)):
        begin, end = first or "", "" if last + 1 == len(module) else last + 1
        return f"*{here}[{begin}:{end}]"
    return ", ".join(f"{here}[{number}]" for number in numbers)


def _repeated(model: nn.Module, counts: Callable[[nn.Module, nn.Module], bool]) -> list[Named]:
    """The outermost modules that count, of classes of which several do."""
    modules = dict(model.named_modules())
    candidates = [
        (path, module)
        for path, module in modules.items()
        if path
        and next(module.children(), None) is not None
        and counts(module, modules.get(path.rpartition(".")[0], model))
    ]
    numbers = Counter(type(module) for _, module in candidates)
    blocks: list[Named] = []
    for path, module in candidates:  # each follows what it is in
        if numbers[type(module)] > 1 and not (blocks and path.startswith(f"{blocks[-1][0]}.")):
            blocks.append((path, module))
    return blocks


def _has(module: nn.Module, part: nn.Module) -> bool:
    try:
        return any(part_of is part for part_of in module.modules())
    except Exception:  # a module that is not made yet, or a method of the program's
        return False
