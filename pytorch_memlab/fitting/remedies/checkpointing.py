"""Activation checkpointing of repeated blocks: their activations are computed again for backward.

Note [Checkpointing of transformers]
A model of ``transformers`` has a switch of its own, which also keeps the blocks from filling a
key-value cache a second time while they are computed again. Where a model has it, it is used.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils import checkpoint as torch_checkpoint

from ...history.module_paths import ModulePaths
from ...simulation.patches import Patches
from .counted_flops import CountedFlops
from .model_variable import ModelVariable, model_variable
from .remedy import Finding, Outcome, Remedy, already_used, does_not_apply
from .repeated_blocks import Named, expression, in_code, outermost, repeated_blocks

_WAYS: Final = (
    "_checkpoint_without_reentrant_generator_impl",  # since torch 2.14
    "_checkpoint_without_reentrant_generator",
)
"""What ``torch.utils.checkpoint.checkpoint`` makes a generator with that computes again."""
_REENTRANT: Final = "CheckpointFunction"
_SWITCHES: Final = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
"""Methods of ``transformers``; the first since release 5.20 or so, the second until release 6."""
_FLAG: Final = "gradient_checkpointing"
"""Attribute of the blocks of ``transformers`` that the switch sets."""


@dataclass(frozen=True, slots=True)
class Checkpointed(Finding):
    """What was found of a program whose blocks are computed again.

    Args:
        blocks: that are computed again, as the program writes them: ``model.blocks[0]``.
        candidates: all blocks that can be, in the order of the model.
        kind: class of the blocks.
        flops: floating point operations that each optimizer step computes again.
    """

    blocks: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()
    kind: str = ""
    flops: int = 0


@dataclass(slots=True)
class _Model:
    """A model with repeated blocks.

    Args:
        model: the outermost module.
        variable: of the program, that it is in.
        blocks: all of them, with their paths.
        chosen: those that are computed again.
        switch: path of the module that has a switch of its own; None if there is none.
    """

    model: nn.Module
    variable: ModelVariable
    blocks: list[Named]
    chosen: list[Named]
    switch: str | None

    def names(self, blocks: Sequence[Named]) -> tuple[str, ...]:
        """Blocks as the program writes them."""
        return tuple(expression(self.model, self.variable.name, path) for path, _ in blocks)


class _Forward:
    """What runs a block, and may be computed again."""

    def __init__(self, run: Callable[..., Any], remedy: Checkpointing) -> None:
        self._run = run
        self._remedy = remedy

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._remedy.within("block"):
            return self._run(*args, **kwargs)


class Checkpointing(Remedy):
    """Blocks are computed again in the backward pass, and keep nothing for it but their inputs.

    Args:
        only: the blocks, as ``Checkpointed.candidates`` has them; None for all.
    """

    name = "checkpoint"
    what_it_changes = "time: blocks are computed a second time"

    def __init__(self, only: Sequence[str] | None = None) -> None:
        self._only = None if only is None else frozenset(only)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Change each model when it is called first."""
        self._models: list[_Model] = []
        self._seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._flops = CountedFlops()
        self._flops_before = self._flops_per_step = 0
        self._depth = {"block": 0, "program": 0}
        self._recomputes = self._is_of_program = self._calls_module = False
        patches = Patches()
        modules = ModulePaths(self._is_called)
        hook = register_optimizer_step_post_hook(self._after_step)
        try:
            # One calls the other, where there are both.
            way = next(each for each in _WAYS if hasattr(torch_checkpoint, each))
            patches.set(torch_checkpoint, way, self._generator(getattr(torch_checkpoint, way)))
            reentrant = getattr(torch_checkpoint, _REENTRANT)
            patches.set(torch_checkpoint, _REENTRANT, _Reentrant(reentrant, self))
            modules.begin()
            yield
        finally:
            modules.end()
            hook.remove()
            patches.undo()

    def finding(self) -> Finding:
        """Which blocks were computed again, and what that costs."""
        changed = [each for each in self._models if each.chosen]
        if self._is_of_program:
            return already_used("the program checkpoints its blocks")
        if not self._calls_module:
            return does_not_apply("the program calls no module")
        if not changed:
            return does_not_apply("no model has repeated blocks")
        if not self._recomputes:
            return does_not_apply("no block is part of a backward pass")
        edits = [each.variable.with_code(_code(each)) for each in changed]
        known = tuple(edit for edit in edits if edit is not None)
        kinds = dict.fromkeys(type(block).__name__ for each in changed for _, block in each.chosen)
        return Checkpointed(
            Outcome.APPLIED,
            code=tuple(line for each in changed for line in _code(each)),
            edits=known if len(known) == len(edits) else (),
            blocks=tuple(name for each in changed for name in each.names(each.chosen)),
            candidates=tuple(name for each in self._models for name in each.names(each.blocks)),
            kind=", ".join(kinds),
            flops=self._flops_per_step or self._flops.total,
        )

    @contextmanager
    def within(self, what: str) -> Iterator[None]:
        """A block is computed, or a function that the program checkpoints."""
        self._depth[what] += 1
        if all(self._depth.values()):
            self._is_of_program = True
        try:
            yield
        finally:
            self._depth[what] -= 1

    def of_program(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """A function that the program checkpoints."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.within("program"):
                return run(*args, **kwargs)

        return call

    # What a model becomes

    def _is_called(self, module: nn.Module) -> None:
        self._calls_module = True
        if module in self._seen:
            return
        model = outermost(module)
        self._seen.update([module, *model.modules()])
        blocks = repeated_blocks(model)
        if not blocks:
            return
        found = _Model(model, model_variable(model), blocks, blocks, _path_of_switch(model))
        if found.switch is not None:
            layers = [each for each in blocks if hasattr(each[1], _FLAG)]
            found.blocks = found.chosen = layers or blocks
        if self._only is not None:
            named = zip(found.blocks, found.names(found.blocks), strict=True)
            found.chosen = [block for block, name in named if name in self._only]
        self._models.append(found)
        self._change(found)

    def _change(self, found: _Model) -> None:
        if found.switch is None:
            for _, block in found.chosen:
                forward = _Forward(block.forward, self)
                block.forward = partial(torch_checkpoint.checkpoint, forward, use_reentrant=False)
            return
        owner: Any = found.model.get_submodule(found.switch)
        if owner.is_gradient_checkpointing:
            self._is_of_program = True
            return
        if not found.chosen:
            return
        getattr(owner, _switch_of(owner))({"use_reentrant": False})
        chosen = {id(block) for _, block in found.chosen}
        for _, block in found.blocks:
            if id(block) not in chosen:
                setattr(block, _FLAG, False)
        for module in owner.modules():
            if hasattr(module, "_gradient_checkpointing_func"):
                module._gradient_checkpointing_func = self._ours(
                    module._gradient_checkpointing_func
                )

    def _ours(self, checkpoint: Callable[..., Any]) -> Any:
        def call(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return checkpoint(_Forward(run, self), *args, **kwargs)

        return call

    # What is computed again

    def _generator(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def generator(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            again = self._again(run) if isinstance(run, _Forward) else self.of_program(run)
            return original(again, *args, **kwargs)

        return generator

    def _again(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._recomputes = True
            with self._flops:
                return run(*args, **kwargs)

        return call

    def _after_step(self, *_arguments: Any) -> None:
        if self._flops.total > self._flops_before:
            self._flops_per_step = self._flops.total - self._flops_before
        self._flops_before = self._flops.total


class _Reentrant:
    """``CheckpointFunction``, which the program calls."""

    def __init__(self, original: Any, remedy: Checkpointing) -> None:
        self._original = original
        self._remedy = remedy

    def apply(self, run: Callable[..., Any], *args: Any) -> Any:
        return self._original.apply(self._remedy.of_program(run), *args)


def _path_of_switch(model: nn.Module) -> str | None:
    """The outermost module with a switch of ``transformers``. See the note above."""
    path: str
    for path, module in model.named_modules():
        if getattr(module, "supports_gradient_checkpointing", False) and _switch_of(module):
            return path
    return None


def _switch_of(module: Any) -> str:
    return next((each for each in _SWITCHES if hasattr(module, each)), "")


def _code(found: _Model) -> tuple[str, ...]:
    name, model = found.variable.name, found.model
    if found.switch is None:
        blocks = in_code(model, name, [path for path, _ in found.chosen])
        return (
            "from functools import partial",
            "from torch.utils.checkpoint import checkpoint",
            f"for block in {blocks}:",
            "    block.forward = partial(checkpoint, block.forward, use_reentrant=False)",
        )
    owner = expression(model, name, found.switch)
    switch = _switch_of(model.get_submodule(found.switch))
    lines = [f'{owner}.{switch}({{"use_reentrant": False}})']
    chosen = {path for path, _ in found.chosen}
    rest = [path for path, _ in found.blocks if path not in chosen]
    if rest:
        lines += [
            f"for block in {in_code(model, name, rest)}:",
            f"    block.{_FLAG} = False",
        ]
    return tuple(lines)
