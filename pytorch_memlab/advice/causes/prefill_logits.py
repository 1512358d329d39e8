"""A model scores all words of a prompt, and only those of the last word are read."""

from __future__ import annotations

import ast

from ..._common.text.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..cause import Cause, Remedy, Results, at_line
from ..changes import EditedSource
from ..evidence import LARGE_VOCABULARY, is_much
from ..rewriting import (
    Rewriting,
    changed_code,
    changed_source,
    nodes_of,
    set_keywords,
    statement_at,
)


class PrefillLogits(Cause):
    """A model of ``transformers`` computes logits of a whole prompt before it generates."""

    name = "logits of a whole prompt"
    order = 98
    results = Results.ROUNDING

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        of_model = [
            name
            for name, file in oom.functions
            if "/transformers/models/" in file.replace("\\", "/")
        ]
        size = sum(
            block.size
            for block in oom.blocks
            if len(block.shape) == 3 and block.shape[-1] >= LARGE_VOCABULARY
        )
        if len(of_model) == 1:  # the model with its head, and no layer within it
            size += oom.request.requested
        change = _of_last_word(oom) if of_model and is_much(size, oom) else None
        if change is None:
            return None
        return self.found(
            size // 2,  # a prompt has two words at least
            f"logits of all words{at_line(change.edits[0].first)} take {prose_size(size)}, and the"
            " program reads those of the last one",
            *changed_code(change),
            effect="logits_to_keep=1: scores of the last word only",
            change=change,
        )


def _of_last_word(oom: OutOfMemory) -> EditedSource | None:
    """The call with ``logits_to_keep=1``; None if the program reads other logits too."""
    for frame in oom.frames:
        file = Rewriting(frame.place.file)
        statement = statement_at(file.tree, frame.place.line)
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        if _reads_last_only(file.tree):
            set_keywords(file, statement.value, logits_to_keep="1")
            return changed_source(file)
    return None


def _reads_last_only(tree: ast.Module) -> bool:
    reads = [node for node in nodes_of(tree, ast.Attribute) if node.attr == "logits"]
    last = {
        id(node.value)
        for node in nodes_of(tree, ast.Subscript)
        if isinstance(node.slice, ast.Tuple)
        and len(node.slice.elts) > 1
        and ast.unparse(node.slice.elts[1]) in ("-1", "-1:")
    }
    return bool(reads) and all(id(node) in last for node in reads)
