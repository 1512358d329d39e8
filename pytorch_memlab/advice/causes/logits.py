"""Scores of a large vocabulary, and their loss."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec

from ..._common.text.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..cause import Basis, Cause, Remedy, Results, at_line
from ..changes import EditedSource
from ..evidence import FIXED, LARGE_VOCABULARY, is_much, places
from ..loss_in_parts import LossInParts, loss_in_parts
from ..rewriting import (
    Rewriting,
    changed_code,
    changed_source,
    rewritings,
    set_keywords,
    training_arguments,
)
from .evaluation_predictions import are_joined, is_evaluation_loop, kept_predictions

_LOSSES = (
    "cross_entropy",
    "CrossEntropyLoss",
    "log_softmax",
    "nll_loss",
    "criterion",
    "compute_loss",
)
_NODES = ("LogSoftmax", "NllLoss", "CrossEntropy", "LogProb")
_PARTS = 8
_BATCH = "per_device_train_batch_size"
_EVALUATED = "per_device_eval_batch_size"
_ACCUMULATION = "gradient_accumulation_steps"
_EFFECT = "the mean of the parts' losses"


class Logits(Cause):
    """A score for each word, in the forward and the backward pass of the loss."""

    name = "logits of a large vocabulary"
    order = 100
    results = Results.ROUNDING
    scales_with_batch = True

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        is_in_loss = any(name in _LOSSES for name, _ in oom.functions)
        is_in_loss |= any(part in oom.node for part in _NODES)
        lines = [
            place.line
            for place in places(oom, oom.frames)
            if any(loss in place.source for loss in _LOSSES)
        ]
        kept = set(kept_predictions(oom))  # another cause has them
        sizes = Counter[int]()
        for block in oom.blocks:
            if block in kept:
                continue
            shape = block.shape
            if block.category not in FIXED and len(shape) > 1 and shape[-1] >= LARGE_VOCABULARY:
                sizes[shape[-1]] += block.size
        if not (lines or is_in_loss) or not sizes:
            return None
        vocabulary, size = sizes.most_common(1)[0]
        whole = size + (0 if are_joined(oom) else oom.request.requested)
        if not is_much(whole, oom):
            return None
        is_evaluation = is_evaluation_loop(oom)
        options = list(_options(oom, is_evaluation=is_evaluation))
        parts = None if options or is_evaluation else _in_parts(oom)
        change = None if parts is None else parts.change
        if options:
            change = options[0]
        remedy = self.found(
            whole // 2,
            f"logits of {vocabulary} classes{at_line(lines[0] if lines else 0)} take"
            f" {prose_size(whole)}",
            *(changed_code(change) or [_advice(oom)]),
            basis=Basis.ESTIMATED,
            change=change,
        )
        if parts is not None and not parts.is_mean_of_targets:
            remedy = replace(remedy, results=Results.MEAN_OF_PARTS, effect=_EFFECT)
        for other in options[1:]:  # a loss of the program's own reads the logits all the same
            otherwise = replace(remedy, code=changed_code(other), change=other)
            remedy = replace(remedy, otherwise=otherwise)
        return remedy


def _advice(oom: OutOfMemory) -> str:
    if is_evaluation_loop(oom):
        return f"TrainingArguments with a smaller {_EVALUATED}"
    files = [file.replace("\\", "/") for _, file in oom.functions]
    if any(file.endswith("transformers/trainer.py") for file in files):
        return "TrainingArguments(use_liger_kernel=True), or a smaller per-device batch"
    return f"the last layer and its loss in {_PARTS} parts of the rows, with checkpoint()"


def _options(oom: OutOfMemory, *, is_evaluation: bool) -> Iterator[EditedSource]:
    """The options of a library: a loss without logits, and fewer sequences at a time."""
    for file, call in training_arguments(oom):
        arguments = {keyword.arg: keyword.value for keyword in call.keywords}
        name = _EVALUATED if is_evaluation else _BATCH
        batch, steps = _number(arguments.get(name), 8), _number(arguments.get(_ACCUMULATION), 1)
        parts = next((n for n in (_PARTS, 4, 2) if batch and batch % n == 0), 0)
        options: list[dict[str, str]] = []
        if is_evaluation:
            # No Liger: it makes the logits where a model does not train, as they are predictions.
            if parts and batch:
                options.append({_EVALUATED: str(batch // parts)})
        else:
            if find_spec("liger_kernel") is not None:
                options.append({"use_liger_kernel": "True"})
            if parts and batch and steps:
                options.append({_BATCH: str(batch // parts), _ACCUMULATION: str(steps * parts)})
        for option in options:
            edited = Rewriting(file.file)
            set_keywords(edited, call, **option)
            change = changed_source(edited)
            if change is not None:
                yield change
        return


def _number(node: ast.expr | None, default: int) -> int | None:
    """The value of an argument; None if it is no number that stands there."""
    if node is None:
        return default
    is_number = isinstance(node, ast.Constant) and isinstance(node.value, int)
    return node.value if is_number else None  # type: ignore[attr-defined]


def _in_parts(oom: OutOfMemory) -> LossInParts | None:
    for file in rewritings(oom):
        parts = loss_in_parts(file, _PARTS)
        if parts is not None:
            return parts
    return None
