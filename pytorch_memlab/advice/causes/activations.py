"""Repeated modules save their activations for backward. They can be computed again instead.

See Note [Checkpointing of transformers].
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ..._common.patching.patches import Patches
from ..._common.text.prose_size import prose_size
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory
from ..around_program import AroundProgram, Finding, Outcome, already_used, does_not_apply
from ..cause import Basis, Cause, NamedChange, Remedy, saves
from ..changes import EditedSource
from ..evidence import is_much
from ..repeated_blocks import FLAG, BlockModel, BlockModels, Named, expression, in_code, switch_of
from ..rewriting import (
    arguments_of_trainer,
    changed_code,
    changed_source,
    last_name,
    nodes_of,
    rewritings,
    stored_names,
)

_CODE: Final = "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"
_OF_TRAINER: Final = {
    "gradient_checkpointing": "True",
    "gradient_checkpointing_kwargs": '{"use_reentrant": False}',
}

_WAYS: Final = (
    "_checkpoint_without_reentrant_generator_impl",  # since torch 2.14
    "_checkpoint_without_reentrant_generator",
)
"""Name of the generator of ``torch.utils.checkpoint.checkpoint`` that computes again."""


@dataclass(frozen=True, slots=True)
class Checkpointed(Finding):
    """The result for a program whose blocks are computed again."""

    # that are computed again, as the program writes them: ``model.blocks[0]``
    blocks: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()
    kind: str = ""
    flops: int = 0


class _Forward:
    """Runs a block, and may compute it again."""

    def __init__(self, run: Callable[..., Any], remedy: Checkpointing, model: int) -> None:
        self._run = run
        self._remedy = remedy
        self.model = model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._remedy.within("block"):
            return self._run(*args, **kwargs)


class Checkpointing(AroundProgram):
    """Blocks are computed again in the backward pass, and keep nothing for it but their inputs."""

    name = "checkpoint"
    what_it_changes = "time: blocks are computed a second time"

    def __init__(self, only: Sequence[str] | None = None) -> None:
        self._only = None if only is None else frozenset(only)

    @contextmanager
    def applied(self) -> Iterator[None]:
        from ..block_survey import CountedFlops

        self._changed: list[tuple[BlockModel, list[Named]]] = []
        self._flops = CountedFlops()
        self._depth = {"block": 0, "program": 0}
        self._recomputed: set[int] = set()
        self._is_of_program = False
        self._models = BlockModels(self._change)
        with super().applied(), self._flops.by_step(), self._models.watching():
            yield

    def patch(self, patches: Patches) -> None:
        from torch.utils import checkpoint as torch_checkpoint

        # One calls the other, where there are both.
        way = next(name for name in _WAYS if hasattr(torch_checkpoint, name))
        patches.around(torch_checkpoint, way)(self._generator)
        patches.around(torch_checkpoint.CheckpointFunction, "apply")(self._reentrant)

    def finding(self) -> Finding:
        if self._is_of_program:
            return already_used("the program checkpoints its blocks")
        if not self._models.calls_module:
            return does_not_apply("the program calls no module")
        if not self._changed:
            return does_not_apply("no model has repeated blocks")
        if not self._recomputed:
            return does_not_apply("no block is part of a backward pass")
        # A model that is never trained, such as an average of another one, stays as it is.
        changed = [self._changed[number] for number in sorted(self._recomputed)]
        codes = [_code(model, chosen) for model, chosen in changed]
        edits = [
            model.variable.with_code(code) for (model, _), code in zip(changed, codes, strict=True)
        ]
        whole_edits = tuple(edit for edit in edits if edit is not None)
        kinds = dict.fromkeys(type(block).__name__ for _, chosen in changed for _, block in chosen)
        return Checkpointed(
            Outcome.APPLIED,
            code=tuple(line for code in codes for line in code),
            edits=whole_edits if len(whole_edits) == len(edits) else (),
            blocks=tuple(name for model, chosen in changed for name in model.names(chosen)),
            candidates=tuple(name for model, _ in changed for name in model.names(model.blocks)),
            kind=", ".join(kinds),
            flops=self._flops.per_step,
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

    # What a model becomes

    def _change(self, model: BlockModel) -> None:
        chosen = [
            block
            for block, name in zip(model.blocks, model.names(model.blocks), strict=True)
            if self._only is None or name in self._only
        ]
        if not chosen:
            return
        number = len(self._changed)
        self._changed.append((model, chosen))
        if model.switch is not None:
            self._switch_on(model, chosen, number)
            return
        from torch.utils.checkpoint import checkpoint

        for _, block in chosen:
            forward = _Forward(block.forward, self, number)
            block.forward = partial(checkpoint, forward, use_reentrant=False)

    def _switch_on(self, model: BlockModel, chosen: Sequence[Named], number: int) -> None:
        owner: Any = model.model.get_submodule(model.switch or "")
        if owner.is_gradient_checkpointing:
            self._is_of_program = True
            return
        getattr(owner, switch_of(owner))({"use_reentrant": False})
        kept = {id(block) for _, block in chosen}
        for _, block in model.blocks:
            if id(block) not in kept:
                setattr(block, FLAG, False)
        for module in owner.modules():
            if hasattr(module, "_gradient_checkpointing_func"):
                original = module._gradient_checkpointing_func
                module._gradient_checkpointing_func = partial(self._ours, original, number)

    def _ours(
        self,
        checkpoint: Callable[..., Any],
        number: int,
        run: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        return checkpoint(_Forward(run, self, number), *args, **kwargs)

    # What is computed again

    def _generator(
        self, original: Callable[..., Any], run: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        if not isinstance(run, _Forward):
            return original(partial(self._of_program, run), *args, **kwargs)
        self._is_of_program = self._is_of_program or self._depth["program"] > 0
        return original(partial(self._again, run), *args, **kwargs)

    def _reentrant(self, original: Callable[..., Any], run: Callable[..., Any], *args: Any) -> Any:
        """``CheckpointFunction.apply``, which the program calls."""
        return original(partial(self._of_program, run), *args)

    def _of_program(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a function that the program checkpoints."""
        with self.within("program"):
            return run(*args, **kwargs)

    def _again(self, run: _Forward, *args: Any, **kwargs: Any) -> Any:
        self._recomputed.add(run.model)
        with self._flops:
            return run(*args, **kwargs)


def _code(blocks_of: BlockModel, chosen: Sequence[Named]) -> tuple[str, ...]:
    name, model = blocks_of.variable.name, blocks_of.model
    if blocks_of.switch is None:
        blocks = in_code(model, name, [path for path, _ in chosen])
        return (
            "from functools import partial",
            "from torch.utils.checkpoint import checkpoint",
            f"for block in {blocks}:",
            "    block.forward = partial(checkpoint, block.forward, use_reentrant=False)",
        )
    owner = expression(model, name, blocks_of.switch)
    switch = switch_of(model.get_submodule(blocks_of.switch))
    lines = [f'{owner}.{switch}({{"use_reentrant": False}})']
    paths = {path for path, _ in chosen}
    rest = [path for path, _ in blocks_of.blocks if path not in paths]
    if rest:
        lines += [
            f"for block in {in_code(model, name, rest)}:",
            f"    block.{FLAG} = False",
        ]
    return tuple(lines)


def _in_loop(oom: OutOfMemory) -> EditedSource | None:
    """The loop over the blocks, which checkpoints each of them, whatever it returns."""
    for file in rewritings(oom):
        for loop in nodes_of(file.tree, ast.For):
            blocks = stored_names(loop.target)
            calls = [
                call
                for call in nodes_of(ast.Module(loop.body, []), ast.Call)
                if isinstance(call.func, ast.Name) and call.func.id in blocks
            ]
            if len(calls) == 1 and oom.model.repeated in map(last_name, ast.walk(loop.iter)):
                [call] = calls
                parts = [call.func, *call.args, *call.keywords]
                arguments = ", ".join([*map(ast.unparse, parts), "use_reentrant=False"])
                file.replace(call, f"torch.utils.checkpoint.checkpoint({arguments})")
                file.ensure_import("torch.utils.checkpoint")
                return changed_source(file)
    return None


class Activations(Cause):
    """Modules of one class, one after the other, save their activations."""

    name = "activations of repeated modules"
    order = 190
    scales_with_batch = True
    tried_by_name = (NamedChange("checkpoint", Checkpointing),)

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        model = oom.model
        whole = sum(
            block.size
            for block in oom.blocks
            if block.is_in_repeated and block.category in (Category.SAVED, Category.TEMPORARIES)
        )
        if model.repeats < 3 or not is_much(whole, oom):
            return None
        size = whole // 2  # inputs stay, and one of them is computed again at a time
        return self.found(
            size,
            f"{model.repeats} modules in {model.repeated} saved {prose_size(whole)} for backward",
            *(arguments_of_trainer(oom, **_OF_TRAINER) or changed_code(_in_loop(oom)) or [_CODE]),
            basis=Basis.ESTIMATED,
            effect=saves(size),
            change=Checkpointing(),
        )
