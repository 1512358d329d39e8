"""A recording and replays of it, as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from .._common.frames.user_code import is_of_user
from .._common.text.prose_size import prose_size
from .._common.text.quoted import printable
from .peak import number_of_events
from .rows import cut, document, place, source_line, wrapped
from .table import Table

if TYPE_CHECKING:
    from ..history.replay import Figures, Variant, WhatIf

_UNNAMED: Final = "with --set"
_FRAMES: Final = 2
"""Of a request that failed: where it is, and who called that."""


def text(answer: WhatIf) -> str:
    """The replays of one GPU."""
    lines = [
        f"{answer.name}: {number_of_events(len(answer.events), answer.dropped)} events",
        "",
        *_table(answer).lines(),
        "",
    ]
    lines += [row for line in _notes(answer) for row in wrapped(line)]
    return document(lines)


def _table(answer: WhatIf) -> Table:
    rows = [("recorded", answer.recorded), ("replayed", answer.check.figures)]
    rows += [(variant.name or _UNNAMED, variant.result) for variant in answer.variants]
    all_figures = [figures for _, figures in rows if figures is not None]
    has_pages = any(figures.calls.maps or figures.calls.unmaps for figures in all_figures)
    heads = ["", "peak active", "reserved", "unused", "segments", *["pages"] * has_pages, "fits"]
    cells = [_cells(name[:16], figures, has_pages=has_pages) for name, figures in rows]
    return Table(heads, cells, "{:16}{:>12}{:>11}{:>11}{:>11}" + "{:>11}" * has_pages + "  {}")


def _cells(name: str, figures: Figures | None, *, has_pages: bool) -> list[str]:
    if figures is None:
        return [name, " differs too much"]
    calls = figures.calls
    return [
        name,
        prose_size(figures.peak_active),
        prose_size(figures.peak_reserved),
        prose_size(figures.unused_at_peak),
        f"+{calls.mallocs:,} -{calls.frees:,}",
        *[f"+{calls.maps:,} -{calls.unmaps:,}"] * has_pages,
        "no" if figures.failures else "yes",
    ]


def _notes(answer: WhatIf) -> Iterator[str]:
    yield "unused: reserved and not in use, when the reserved bytes were highest"
    yield from _check(answer)
    if answer.private_pools:
        yield (
            f"private pools, of CUDA graphs or torch.cuda.MemPool: {answer.private_pools:,}; each "
            "keeps its blocks for itself, here too"
        )
    if answer.recorded.out_of_memory is not None:
        yield "recorded:"
        yield from _failure(answer.recorded, answer)
    for variant in answer.variants:
        yield from _variant(variant, answer)
    if answer.variants and answer.earlier:
        size = prose_size(answer.earlier)
        yield f"each row begins with the {size} of segments from before the first event"
    if any(variant.gpu is not None for variant in answer.variants):
        yield "the requests are the recorded ones; on another GPU, kernels may ask for more or less"


def _check(answer: WhatIf) -> Iterator[str]:
    check = answer.check
    compared = f"{check.allocations:,} allocations and {check.segments:,} changes of segments"
    if check.matches:
        yield f"replayed: all {compared} are as recorded"
    elif check.first is None:
        yield f"replayed: all {compared} are as recorded, but not the blocks at the end"
    else:
        many = f"{check.differences:,} event{'s differ' if check.differences > 1 else ' differs'}"
        yield f"replayed: {many}, of {compared}; the rows below it are approximations"
        yield f"  the first is event {check.first.index + 1:,}: {check.first.message}"


def _variant(variant: Variant, answer: WhatIf) -> Iterator[str]:
    result, gpu = variant.result, variant.gpu
    if gpu is not None:
        parts = [f"{gpu.name}: {prose_size(gpu.total_memory)}"]
        if result.taken:
            parts.append(f"of which an estimated {prose_size(result.taken)} for the CUDA context")
    elif result.capacity is not None:
        parts = [f"the {prose_size(result.capacity)} that the recording had when it ran out"]
    else:
        parts = ["no limit"]
    if answer.settings:
        parts.append(answer.settings)
    yield f"{variant.name or _UNNAMED}: {', '.join(parts)}"
    if result.retries:
        times = "once" if result.retries == 1 else f"{result.retries:,} times"
        yield f"  gave cached memory back to the GPU to serve a request, {times}"
    yield from _failure(result, answer)


def _failure(figures: Figures, answer: WhatIf) -> Iterator[str]:
    failure = figures.out_of_memory
    if failure is None:
        return
    size = prose_size(failure.size)
    yield f"  out of memory at event {failure.index + 1:,}: no room for {size}"
    stack = answer.stacks[answer.events.stacks[failure.index]]
    of_user = [frame for frame in stack if is_of_user(frame.filename)] or list(stack)
    for frame in of_user[:_FRAMES]:
        source = printable(source_line(frame.filename, frame.line))
        yield cut("    " + "  ".join(filter(None, (place(*frame), source))))
    unused = failure.reserved - failure.active
    yield (
        f"    {prose_size(failure.active)} in use, {prose_size(unused)} cached, "
        f"{prose_size(failure.free)} free on the GPU"
    )
