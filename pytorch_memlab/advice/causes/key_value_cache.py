"""A language model returns its keys and values where nothing is generated."""

from __future__ import annotations

import ast
import re

from ..._common.text.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..cause import Cause, Remedy, Results, at_line
from ..changes import EditedSource
from ..evidence import is_much
from ..rewriting import (
    Rewriting,
    changed_code,
    changed_source,
    name_of_call,
    nodes_of,
    set_keywords,
    statement_at,
)

_CACHE = re.compile(r"past_key_values|\.layers\[\d+\]\.(keys|values)$")
_USES = ("past_key_values", "generate", "cache_position")
_INPUTS = ("labels", "attention_mask", "input_ids")


class KeyValueCache(Cause):
    """The cache of a model of ``transformers`` is filled in a training or an evaluation."""

    name = "a key-value cache that nothing reads"
    order = 38
    results = Results.SAME

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        size = sum(block.size for block in oom.blocks if _CACHE.search(block.name))
        change = _without_cache(oom) if is_much(size, oom) else None
        if change is None:
            return None
        line = change.edits[0].first
        return self.found(
            size,
            f"the model{at_line(line)} keeps the keys and values of its layers for a next word that"
            f" never comes: {prose_size(size)}",
            *changed_code(change),
            change=change,
        )


def _without_cache(oom: OutOfMemory) -> EditedSource | None:
    """The calls of the running lines with ``use_cache=False``; None if the cache is read."""
    for frame in oom.frames:
        file = Rewriting(frame.place.file)
        if any(_is_used(node) for node in ast.walk(file.tree)):
            return None
        statement = statement_at(file.tree, frame.place.line)
        if statement is None or hasattr(statement, "body"):
            continue
        for call in nodes_of(statement, ast.Call):
            names = {keyword.arg for keyword in call.keywords}
            if names & {*_INPUTS, None} and name_of_call(call) not in ("dict", "print"):
                set_keywords(file, call, use_cache="False")
                return changed_source(file)
    return None


def _is_used(node: ast.AST) -> bool:
    names = getattr(node, "arg", ""), getattr(node, "attr", ""), getattr(node, "id", "")
    return any(name in _USES for name in names)
