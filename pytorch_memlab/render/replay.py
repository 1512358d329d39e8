"""A recording and replays of it, as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from .._common.frames.user_code import is_of_user
from .._common.text.prose_size import prose_size
from .._common.text.quoted import printable
from .peak import number_of_events
from .rows import cut, document, place, source_line, wrapped

if TYPE_CHECKING:
    from ..history.replay import Figures, Variant, WhatIf

_UNNAMED: Final = "with --set"
_FRAMES: Final = 2
"""Of a request that failed: where it is, and who called that."""


def text(found: WhatIf) -> str:
    """The replays of one GPU."""
    lines = [
        f"{found.name}: {number_of_events(len(found.events), found.dropped)} events",
        "",
        *_table(found),
        "",
    ]
    lines += [row for line in _notes(found) for row in wrapped(line)]
    return document(lines)


def _table(found: WhatIf) -> Iterator[str]:
    rows = [("recorded", found.recorded), ("replayed", found.check.figures)]
    rows += [(variant.name or _UNNAMED, variant.result) for variant in found.variants]
    known = [one for _, one in rows if one is not None]
    has_pages = any(one.calls.maps or one.calls.unmaps for one in known)
    pages = f"{'pages':>11}" if has_pages else ""
    yield f"{'':16}{'peak active':>12}{'reserved':>11}{'unused':>11}{'segments':>11}{pages}  fits"
    for name, one in rows:
        if one is None:
            yield f"{name:16} differs too much"
            continue
        calls = one.calls
        pages = f"{f'+{calls.maps:,} -{calls.unmaps:,}':>11}" if has_pages else ""
        yield (
            f"{name[:16]:16}{prose_size(one.peak_active):>12}{prose_size(one.peak_reserved):>11}"
            f"{prose_size(one.unused_at_peak):>11}{f'+{calls.mallocs:,} -{calls.frees:,}':>11}"
            f"{pages}  {'no' if one.failures else 'yes'}"
        )


def _notes(found: WhatIf) -> Iterator[str]:
    yield "unused: reserved and not in use, when the reserved bytes were highest"
    yield from _check(found)
    if found.private_pools:
        yield (
            f"private pools, of CUDA graphs or torch.cuda.MemPool: {found.private_pools:,}; each "
            "keeps its blocks for itself, here too"
        )
    if found.recorded.out_of_memory is not None:
        yield "recorded:"
        yield from _failure(found.recorded, found)
    for variant in found.variants:
        yield from _variant(variant, found)
    if found.variants and found.earlier:
        size = prose_size(found.earlier)
        yield f"each row begins with the {size} of segments from before the first event"
    if any(variant.gpu is not None for variant in found.variants):
        yield "the requests are the recorded ones; on another GPU, kernels may ask for more or less"


def _check(found: WhatIf) -> Iterator[str]:
    check = found.check
    compared = f"{check.allocations:,} allocations and {check.segments:,} changes of segments"
    if check.matches:
        yield f"replayed: all {compared} are as recorded"
    elif check.first is None:
        yield f"replayed: all {compared} are as recorded, but not the blocks at the end"
    else:
        many = f"{check.differences:,} event{'s differ' if check.differences > 1 else ' differs'}"
        yield f"replayed: {many}, of {compared}; the rows below it are approximations"
        yield f"  the first is event {check.first.index + 1:,}: {check.first.message}"


def _variant(variant: Variant, found: WhatIf) -> Iterator[str]:
    result, gpu = variant.result, variant.gpu
    if gpu is not None:
        parts = [f"{gpu.name}: {prose_size(gpu.total_memory)}"]
        if result.taken:
            parts.append(f"of which an estimated {prose_size(result.taken)} for the CUDA context")
    elif result.capacity is not None:
        parts = [f"the {prose_size(result.capacity)} that the recording had when it ran out"]
    else:
        parts = ["no limit"]
    if found.settings:
        parts.append(found.settings)
    yield f"{variant.name or _UNNAMED}: {', '.join(parts)}"
    if result.retries:
        times = "once" if result.retries == 1 else f"{result.retries:,} times"
        yield f"  gave cached memory back to the GPU to serve a request, {times}"
    yield from _failure(result, found)


def _failure(figures: Figures, found: WhatIf) -> Iterator[str]:
    failure = figures.out_of_memory
    if failure is None:
        return
    size = prose_size(failure.size)
    yield f"  out of memory at event {failure.index + 1:,}: no room for {size}"
    stack = found.stacks[found.events.stacks[failure.index]]
    of_user = [frame for frame in stack if is_of_user(frame.filename)] or list(stack)
    for frame in of_user[:_FRAMES]:
        source = printable(source_line(frame.filename, frame.line))
        yield cut("    " + "  ".join(filter(None, (place(*frame), source))))
    unused = failure.reserved - failure.active
    yield (
        f"    {prose_size(failure.active)} in use, {prose_size(unused)} cached, "
        f"{prose_size(failure.free)} free on the GPU"
    )
