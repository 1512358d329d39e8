"""Attention that is written out stores the matrix of scores."""

from __future__ import annotations

from collections import Counter

from ..._common.text.prose_size import prose_size
from ...history.out_of_memory import BlockInUse, OutOfMemory, ProgramLine
from ..around_program import Edit
from ..attention.fused_attention import fused_attention
from ..cause import Cause, Remedy, Results, at_line
from ..changes import edited_source
from ..evidence import LARGE_VOCABULARY, is_much, is_score_matrix, places

_FUSED = "scaled_dot_product_attention"


class AttentionMatrices(Cause):
    """The scores of attention are stored, a number for each pair of positions."""

    name = "attention written out"
    order = 90
    results = Results.ROUNDING

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        candidates = places(oom, oom.frames[:1])
        if any(_FUSED in candidate.source for candidate in candidates):
            return None
        matrices = [block for block in oom.blocks if is_score_matrix(block)]
        softmaxes = [place for place in candidates if place in oom.softmaxes]
        # Lines that hold matrices first: a loss has a softmax too.
        for finds in (_made_at, _in_file_of):
            for place in softmaxes:
                shape = _shape_of_scores(finds(place, matrices))
                if shape is not None:
                    return self._of(oom, matrices, place, shape)
        return None

    def _of(
        self,
        oom: OutOfMemory,
        matrices: list[BlockInUse],
        place: ProgramLine,
        shape: tuple[int, int],
    ) -> Remedy | None:
        alike = [block for block in matrices if block.shape[-2:] == shape]
        has_heads = any(len(block.shape) > 3 for block in alike)
        fused = fused_attention(place.file, place.line, has_heads=has_heads)
        scores = _beside(place, alike) if fused is None else _made_in(fused.edit, place, alike)
        size = sum(block.size for block in scores)
        if not is_much(size, oom):
            return None
        rows, columns = shape
        return self.found(
            size,
            f"attention{at_line(place.line)} stores {rows} x {columns} matrices:"
            f" {prose_size(size)}",
            *(
                fused.code
                if fused is not None
                else (f"{_FUSED}(q, k, v, ...)  # with its mask, dropout and scale",)
            ),
            change=None if fused is None else edited_source(fused.edit),
        )


def _made_in(edit: Edit, softmax: ProgramLine, matrices: list[BlockInUse]) -> list[BlockInUse]:
    """The matrices of the lines that the edit replaces; others may have the shape by chance."""
    # The last line multiplies by the values. Its result stays, whatever computes it.
    last = max(softmax.line, edit.last - 1)
    return [
        block
        for block in matrices
        if block.place is not None
        and block.place.file == edit.file
        and edit.first <= block.place.line <= last
    ]


def _beside(place: ProgramLine, matrices: list[BlockInUse]) -> list[BlockInUse]:
    """The matrices of the function of a softmax, as large as its result where that is there."""
    made = [
        block
        for block in matrices
        if block.place is not None
        and (block.place.file, block.place.function) == (place.file, place.function)
    ]
    sizes = {block.size for block in _made_at(place, made)}
    return [block for block in made if not sizes or block.size in sizes]


def _made_at(place: ProgramLine, matrices: list[BlockInUse]) -> list[BlockInUse]:
    return [block for block in matrices if block.place == place]


def _in_file_of(place: ProgramLine, matrices: list[BlockInUse]) -> list[BlockInUse]:
    """The first softmax holds nothing while it runs: the scores do."""
    return [
        block
        for block in matrices
        if block.place is not None
        and block.place.file == place.file
        and block.shape[-1] == block.shape[-2]
    ]


def _shape_of_scores(matrices: list[BlockInUse]) -> tuple[int, int] | None:
    sizes = Counter[tuple[int, int]]()
    for block in matrices:
        rows, columns = block.shape[-2:]
        sizes[rows, columns] += block.size
    if not sizes:
        return None
    rows, columns = sizes.most_common(1)[0][0]
    if rows != columns and columns >= LARGE_VOCABULARY:  # probabilities of words
        return None
    return rows, columns
