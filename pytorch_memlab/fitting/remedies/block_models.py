"""Models with repeated blocks, found when the program calls them first.

Note [Checkpointing of transformers]
A model of ``transformers`` has a switch for activation checkpointing, which also keeps the blocks
from filling a key-value cache a second time while they are computed again. Where a model has it,
it is used, and its blocks are those that have the flag.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from torch import nn

from ...history.module_paths import ModulePaths
from .model_variable import ModelVariable, model_variable
from .repeated_blocks import Named, expression, outermost, repeated_blocks

SWITCHES: Final = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
"""Methods of ``transformers``: that of its newer releases, and that of release 4."""
FLAG: Final = "gradient_checkpointing"
"""Attribute of the blocks of ``transformers`` that the switch sets."""


@dataclass(frozen=True, slots=True)
class BlockModel:
    """A model with repeated blocks."""

    model: nn.Module
    variable: ModelVariable
    blocks: tuple[Named, ...]
    switch: str | None  # path of the module that has a switch; None if there is none

    def names(self, blocks: Sequence[Named]) -> tuple[str, ...]:
        """Blocks as the program writes them."""
        return tuple(expression(self.model, self.variable.name, path) for path, _ in blocks)


class BlockModels:
    """Finds models with repeated blocks while it is on."""

    def __init__(self, found: Callable[[BlockModel], object]) -> None:
        self._found = found
        self._seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.calls_module = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at each outermost module that is called."""
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
            blocks = [each for each in blocks if hasattr(each[1], FLAG)] or blocks
        self._found(BlockModel(model, model_variable(model), tuple(blocks), switch))


def switch_of(module: Any) -> str:
    """Name of the method that checkpoints activations of a module; empty if it has none."""
    return next((each for each in SWITCHES if hasattr(module, each)), "")


def _path_of_switch(model: nn.Module) -> str | None:
    """The outermost module with a switch of ``transformers``."""
    path: str
    for path, module in model.named_modules():
        if getattr(module, "supports_gradient_checkpointing", False) and switch_of(module):
            return path
    return None
