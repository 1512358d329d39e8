"""Programs that run out of memory on a simulated GPU, and what is known of them then."""

from __future__ import annotations

import gc
import linecache
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pytorch_memlab import simulate
from pytorch_memlab._common.process.uncaught_errors import uncaught
from pytorch_memlab.advice.attention.written_call import FusedAttention
from pytorch_memlab.advice.batch_size import SmallerBatch
from pytorch_memlab.advice.cause import Remedy
from pytorch_memlab.advice.changes import EditedSource
from pytorch_memlab.history.out_of_memory import OutOfMemory

_PLACE = re.compile(r"# \S+\.py (in place of|before|after) lines? [\d to]+:")


def written(remedy: Remedy | SmallerBatch | FusedAttention) -> tuple[str, ...]:
    """The lines of code that a person writes, without their places and indentation."""
    return tuple(line.strip() for line in remedy.code if not _PLACE.fullmatch(line))


def facts_of(text: str, gpu: str, folder: Path) -> OutOfMemory:
    """The facts of a program that runs out of memory."""
    path = folder / "program.py"
    path.write_text(text)
    linecache.checkcache(str(path))
    gc.collect()  # an optimizer of another test is none of this program
    with (
        pytest.raises(torch.OutOfMemoryError) as caught,
        simulate(gpu, compute=False, context=0),
    ):
        exec(compile(text, str(path), "exec"), {"__name__": "__main__"})
    report = uncaught.add(caught.value)
    assert report is not None
    assert isinstance(report.facts, OutOfMemory)
    frames = tuple(one for one in report.facts.frames if one.place.file == str(path))
    return replace(report.facts, frames=frames)


def peak_of(text: str, gpu: str = "1GiB") -> int:
    """The most bytes in use of a program that fits."""
    with simulate(gpu, compute=False, context=0):
        exec(compile(text, "program.py", "exec"), {"__name__": "__main__"})
        return torch.cuda.max_memory_allocated()


def edited(text: str, remedy: Remedy) -> str:
    """A program with the lines of a remedy."""
    assert isinstance(remedy.change, EditedSource)
    lines = text.splitlines()
    for edit in sorted(remedy.change.edits, key=lambda edit: -edit.first):
        lines[edit.first - 1 : edit.last] = edit.lines
    return "\n".join(lines) + "\n"
