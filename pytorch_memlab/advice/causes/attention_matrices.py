"""Attention that is written out stores the matrix of scores."""

from __future__ import annotations

from collections import Counter

from ..._common.prose_size import prose_size
from ...history.out_of_memory import BlockInUse, OutOfMemory, Place
from ..cause import Cause, Remedy, at_line
from ..changes import edited_source
from ..evidence import LARGE_VOCABULARY, is_much, is_score_matrix, places
from ..written_attention import fused_attention

_FUSED = "scaled_dot_product_attention"


class AttentionMatrices(Cause):
    """The scores of attention are stored, a number for each pair of positions."""

    name = "attention written out"
    order = 90

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        candidates = places(oom, oom.frames[:1])
        if any(_FUSED in candidate.source for candidate in candidates):
            return None
        matrices = [block for block in oom.blocks if is_score_matrix(block)]
        # A loss has a softmax too, but no such matrices.
        for place in (place for place in candidates if place in oom.softmaxes):
            shape = _shape_of_scores(matrices, place)
            if shape is not None:
                return self._of(oom, matrices, place, shape)
        return None

    def _of(
        self,
        oom: OutOfMemory,
        matrices: list[BlockInUse],
        place: Place,
        shape: tuple[int, int],
    ) -> Remedy | None:
        scores = [block for block in matrices if block.shape[-2:] == shape]
        size = sum(block.size for block in scores)
        if not is_much(size, oom):
            return None
        has_heads = any(len(block.shape) > 3 for block in scores)
        fused = fused_attention(place.file, place.line, has_heads=has_heads)
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


def _shape_of_scores(matrices: list[BlockInUse], place: Place) -> tuple[int, int] | None:
    sizes = Counter[tuple[int, int]]()
    for block in matrices:
        rows, columns = block.shape[-2:]
        made = block.place
        # The first softmax holds nothing while it runs: the scores do.
        if made is not None and (made == place or (rows == columns and made.file == place.file)):
            sizes[rows, columns] += block.size
    if not sizes:
        return None
    rows, columns = sizes.most_common(1)[0][0]
    if rows != columns and columns >= LARGE_VOCABULARY:  # probabilities of words
        return None
    return rows, columns
