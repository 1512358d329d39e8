"""The ``Trainer`` of ``transformers`` keeps the predictions of a whole evaluation on the GPU."""

from __future__ import annotations

import re

from ..._common.text.prose_size import prose_size
from ...history.out_of_memory import BlockInUse, OutOfMemory
from ..cause import Cause, Remedy, Results, at_line
from ..changes import EditedSource
from ..evidence import FIXED, is_much
from ..rewriting import changed_code, changed_source, set_keywords, training_arguments

_OPTION = "eval_accumulation_steps"
_KEPT = re.compile(r"(^|\.)(all_(preds|labels|inputs|losses)\.tensors|tensors)\b")
"""The containers of ``evaluation_loop``, and the same ones while a batch is added to them."""
_JOINED = re.compile(r"tensor1$")
"""What the container has, while the predictions of one batch are joined to it."""


class EvaluationPredictions(Cause):
    """Predictions of all batches are joined on the GPU, and go to the host when it is over."""

    name = "predictions of a whole evaluation"
    order = 59
    results = Results.SAME

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        if not is_evaluation_loop(oom):
            return None
        size = sum(block.size for block in kept_predictions(oom))
        if are_joined(oom):  # a new tensor takes all of them once more
            size += oom.request.requested
        if not is_much(size, oom):
            return None
        is_written, change = _on_host(oom)
        if is_written and change is None:
            return None
        line = oom.frames[0].place.line if oom.frames else 0
        return self.found(
            size,
            f"Trainer keeps the predictions of all batches{at_line(line)} on the GPU until the"
            f" evaluation is over: {prose_size(size)}",
            *(changed_code(change) or [f"TrainingArguments({_OPTION}=1)"]),
            effect="predictions go to host memory after each batch",
            change=change,
        )


def is_evaluation_loop(oom: OutOfMemory) -> bool:
    """True if a ``Trainer`` evaluates."""
    return "evaluation_loop" in _running(oom)


def are_joined(oom: OutOfMemory) -> bool:
    """True if the request is for predictions of all batches, of which one more is added."""
    return {"evaluation_loop", "torch_pad_and_concatenate"} <= _running(oom)


def kept_predictions(oom: OutOfMemory) -> list[BlockInUse]:
    """The blocks of predictions of earlier batches, in a ``Trainer`` that evaluates."""
    if not is_evaluation_loop(oom):
        return []
    is_joined = are_joined(oom)
    return [
        block
        for block in oom.blocks
        if block.category not in FIXED
        and (_KEPT.search(block.name) or (is_joined and _JOINED.match(block.name)))
    ]


def _running(oom: OutOfMemory) -> set[str]:
    """Functions of the ``Trainer`` that run."""
    return {
        name
        for name, file in oom.functions
        if re.search(r"/transformers/trainer\w*\.py$", file.replace("\\", "/"))
    }


def _on_host(oom: OutOfMemory) -> tuple[bool, EditedSource | None]:
    """True if the program writes its arguments down, and the change of them."""
    # No change for arguments that have it already.
    for file, call in training_arguments(oom):
        set_keywords(file, call, **{_OPTION: "1"})
        return True, changed_source(file)
    return False, None
