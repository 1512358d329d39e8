"""Scores of a large vocabulary, and their loss."""

from __future__ import annotations

from collections import Counter

from ..._common.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..cause import Basis, Cause, Remedy, at_line
from ..evidence import FIXED, LARGE_VOCABULARY, is_much, places

_LOSSES = ("cross_entropy", "CrossEntropyLoss", "log_softmax", "nll_loss", "criterion")
_PARTS = 8


class Logits(Cause):
    """A score for each word, in the forward and the backward pass of the loss."""

    name = "logits of a large vocabulary"
    order = 100
    scales_with_batch = True

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        is_in_loss = any(name in _LOSSES for name, _ in oom.functions)
        lines = [
            place.line
            for place in places(oom, oom.frames)
            if any(loss in place.source for loss in _LOSSES)
        ]
        sizes = Counter[int]()
        for block in oom.blocks:
            shape = block.shape
            if block.category not in FIXED and len(shape) > 1 and shape[-1] >= LARGE_VOCABULARY:
                sizes[shape[-1]] += block.size
        if not (lines or is_in_loss) or not sizes:
            return None
        vocabulary, size = sizes.most_common(1)[0]
        whole = size + oom.request.requested
        if not is_much(whole, oom):
            return None
        return self.found(
            whole * (_PARTS - 1) // _PARTS,
            f"logits of {vocabulary} classes{at_line(lines[0] if lines else 0)} take"
            f" {prose_size(whole)}",
            _advice(oom),
            basis=Basis.ESTIMATED,
        )


def _advice(oom: OutOfMemory) -> str:
    files = [file.replace("\\", "/") for _, file in oom.functions]
    if any(file.endswith("transformers/trainer.py") for file in files):
        return "TrainingArguments(use_liger_kernel=True), or a smaller per-device batch"
    return f"the last layer and its loss in {_PARTS} parts of the rows, with checkpoint()"
