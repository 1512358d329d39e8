"""Questions that several causes ask about the facts of an out-of-memory error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ..history.model import Category
from ..history.out_of_memory import BlockInUse, OutOfMemory, ProgramFrame, ProgramLine
from .cause import at_line

LARGE_VOCABULARY: Final = 8192
LONG_SEQUENCE: Final = 128

FIXED: Final = frozenset(
    {
        Category.PARAMETERS,
        Category.GRADIENTS,
        Category.OPTIMIZER_STATE,
        Category.BUFFERS,
        Category.WORKSPACES,
    }
)
"""Categories that do not grow with the batch."""


def is_much(size: int, oom: OutOfMemory) -> bool:
    """True if the bytes are a quarter of those in use, or as many as the request lacks."""
    return size > 0 and (size * 4 >= oom.in_use or size >= max(oom.shortage, oom.in_use // 10))


def is_kept(oom: OutOfMemory, saved: int) -> bool:
    """True if a container in a training keeps most of what autograd saved."""
    return any(
        group.graphs * 2 > saved and group.tensors > 2 and not group.is_variable
        for group in oom.groups
    )


def places(oom: OutOfMemory, frames: Sequence[ProgramFrame]) -> list[ProgramLine]:
    """The lines of some frames, then those that hold most."""
    holding = [holder.place for holder in oom.by_line()[:6] if holder.place is not None]
    return [*(frame.place for frame in frames), *holding]


def is_in_optimizer(oom: OutOfMemory) -> bool:
    return any("/optim/" in file.replace("\\", "/") for _, file in oom.functions)


def makes_state(oom: OutOfMemory) -> bool:
    return any(name == "_init_group" for name, _ in oom.functions)


def is_score_matrix(block: BlockInUse) -> bool:
    shape = block.shape
    return len(shape) >= 3 and min(shape[-2:]) >= LONG_SEQUENCE


def place_with(oom: OutOfMemory, pattern: str) -> tuple[str, int]:
    """The last line of a running function that matches; an empty file and 0 if none does."""
    for frame in oom.frames:
        for number, text in reversed(frame.source.items()):
            if re.search(pattern, text):
                return frame.place.file, number
    return "", 0


def line_with(oom: OutOfMemory, pattern: str) -> int:
    return place_with(oom, pattern)[1]


def named_with_line(name: str, line: int) -> str:
    return f"{name}{at_line(line)}"
