"""The facts of an out-of-memory error of a program that did not run."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from pathlib import Path

from pytorch_memlab.history.out_of_memory import BlockInUse, OutOfMemory, ProgramFrame, ProgramLine
from pytorch_memlab.simulation.allocator.out_of_memory import FailedRequest

MIB = 2**20


def place(text: str, folder: Path, source: str) -> ProgramLine:
    """The line of a program with this text."""
    path = folder / "program.py"
    path.write_text(text)
    linecache.checkcache(str(path))
    lines = [line.strip() for line in text.splitlines()]
    return ProgramLine(str(path), lines.index(source) + 1, "<module>", source)


def made_up_facts(
    at: ProgramLine,
    blocks: Sequence[BlockInUse],
    *,
    requested: int = 0,
    functions: tuple[tuple[str, str], ...] = (),
) -> OutOfMemory:
    """The facts of a program that runs a line, with these blocks in use and nothing free."""
    in_use = dict(enumerate(block.size for block in blocks))
    total = sum(in_use.values())
    request = FailedRequest(
        "CUDA out of memory.",
        device=0,
        requested=requested,
        segment=requested,
        stream=0,
        capacity=total,
        free=0,
        context=0,
        others=0,
        allowed=None,
        reserved=total,
        blocks=in_use,
        free_blocks=(),
    )
    frame = ProgramFrame(at, frozenset(), frozenset(), {at.line: at.source})
    return OutOfMemory(request, "GPU", True, (frame,), functions, blocks=tuple(blocks))
