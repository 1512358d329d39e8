"""Frames in files that PyTorch's compiler wrote: named by what they run, not by a path of a cache.

Note [Lines in stacks of compiled code]
PyTorch's memory history asks Inductor for the lines of the program that a line of its file comes
from, and puts their frames behind the file's own: the bytes count at these lines. A snapshot that
was written with ``augment_with_fx_traces=True`` has the stack of each op that a graph module of
``torch.fx`` ran, as text. Where neither is there, the file names variables of the program, and no
lines of it: its bytes count at the line that calls the compiled code, whose frame is further out.

An event that was recorded with ``compile_context=True`` has the compiled region that ran, without a
stack too: ``Torch-Compiled Region: 0/1``, of the first function, compiled a second time. PyTorch's
logs write it as ``[0/1]``, and so do the frames here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from .._common.text.source_lines import source_lines
from .model import Frame, Stack

_GENERATED: Final = re.compile(
    r"[\\/]torchinductor_[^\\/]*[\\/]\w{2}[\\/]c\w+\.py$"
    # In another cache: a hash of 256 bits in base 32 behind a c, in a folder of its first digits.
    r"|[\\/](?P<digits>[a-z2-7]{2})[\\/]c(?P=digits)[a-z2-7]{49,50}\.py$"
)
_GRAPH_MODULE: Final = re.compile(r"(?:^|[\\/])fx_generated_\w*\.py$|^<eval_with_key>\.\d+")
_LAUNCH: Final = re.compile(r"(\w+)\.run\(|(extern_kernels\.\w+)\(|torch\.ops\.([\w.]+)\(")
_SOURCES: Final = re.compile(r"# Topologically Sorted Source Nodes: \[([^\]]*)\]")
_TRACED: Final = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_REGION: Final = re.compile(r"Torch-Compiled Region(?:: *(\S+))?")
_LONGEST: Final = 4_000_000
"""Characters of a file that are read."""

COMPILED_CODE: Final = "compiled code"


def frames_of(frame: Mapping[str, Any]) -> tuple[Frame, ...]:
    """A frame of a snapshot as it is, or for one of generated code what it runs, in no file."""
    # The lines of the program that it comes from follow, innermost first, where the snapshot has
    # them: Note [Lines in stacks of compiled code].
    read = Frame(str(frame["filename"]), int(frame["line"]), str(frame["name"]))
    if _GENERATED.search(read.filename):
        launch, names = _next_launch(read.filename, read.line)
        of_names = f" of {names}" if names else ""
        return (_compiled(f"{launch}{of_names}" if launch else ""),)
    if not _GRAPH_MODULE.search(read.filename):
        return (read,)
    lines = _TRACED.findall(str(frame.get("fx_original_trace") or ""))
    places = (Frame(file, int(line), name) for file, line, name in reversed(lines))
    return (_compiled(str(frame.get("fx_node_name") or "")), *places)


def in_region(
    stack: Stack,  # of its frames, maybe none
    context: str,  # of the compiler: a compiled region, or anything else where none ran
    metadata: str,  # a text of the program, for an event that has nothing else
) -> Stack:
    """The stack of an event, with what else its entry says of where it happened."""
    region = _REGION.match(context)
    if region is None:
        return (Frame("", 0, metadata),) if metadata and not stack else stack
    named = f"{COMPILED_CODE} [{region[1]}]" if region[1] else COMPILED_CODE
    if not stack:
        return (Frame("", 0, named),)
    first = stack[0]
    if first.filename or not first.name.startswith(COMPILED_CODE):
        return stack
    return (Frame("", 0, named + first.name.removeprefix(COMPILED_CODE)), *stack[1:])


def _compiled(what: str) -> Frame:
    return Frame("", 0, f"{COMPILED_CODE}: {what}" if what else COMPILED_CODE)


def _next_launch(file: str, line: int) -> tuple[str, str]:
    """The first kernel that a file launches from a line on, and the variables that it computes."""
    names, lines = "", _lines(file)
    start = max(line - 1, 0)
    while 0 < start < len(lines) and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    for text in islice(lines, start, None):
        sources, launch = _SOURCES.search(text), _LAUNCH.search(text)
        if sources:
            names = sources[1]
        if launch:
            return launch[1] or launch[2] or launch[3], names
        if text.lstrip().startswith("return "):
            break
    return "", ""


@lru_cache(maxsize=64)
def _lines(file: str) -> Sequence[str]:
    if not os.path.isfile(file):  # a snapshot may name anything
        return ()
    try:
        with open(file, encoding="utf-8", errors="replace") as source:
            return source_lines(source.read(_LONGEST))
    except OSError:
        return ()
