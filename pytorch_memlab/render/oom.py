"""An out-of-memory report as text of 80 columns, but for long code.

It has 24 lines, unless the remedies and two lines that hold most need more.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from .._common.text.prose_size import counted, prose_size
from .._common.text.quoted import visible
from .._common.text.shared_paths import shown
from ..advice.catalogue import names_fault
from ..advice.cause import Remedy
from ..advice.changes import EditedSource
from ..advice.trial_records import Advice, Result, Together
from ..advice.trials import untried_advice
from ..history.model import Category
from ..history.out_of_memory import LineHolder, OutOfMemory, ProgramLine
from ..profiles.recorded import ProgramError, ShownRemedy
from .advice import lines_of, outcome, together, untried
from .page import notebook_text
from .private_pools import keepers, made_at
from .rows import WIDTH, cut, file_and_line, filled, wrapped
from .so_far import so_far

LINES: Final = 24
_HOLDERS: Final = 4
_LEAST_HOLDERS: Final = 2
_GROWN: Final = 2
_MANY: Final = 4
_NAME: Final = 22
_PLACE: Final = 32

_SHORT = {
    Category.SAVED: "saved for backward",
    Category.OTHERS: "other tensors",
}


def text(oom: OutOfMemory, tried: Advice | None = None) -> str:
    """The text that a terminal shows after the traceback."""
    head = _fitted([*_head(oom), *_held(oom)])
    advice = _advice(oom, tried or untried_advice(oom))
    room = max(_LEAST_HOLDERS, LINES - len(advice) - len(head))
    lines = [*head, *_fitted(_lines(oom, room)), *advice]
    return "".join(f"{line}\n" for line in lines)


def _fitted(lines: Sequence[str]) -> list[str]:
    return [cut(visible(line)) for line in lines]


def fragment(report: str) -> str:
    """The text of a report for a notebook."""
    return notebook_text(report.strip("\n"), "Out of memory")


def data(oom: OutOfMemory, tried: Advice | None = None) -> dict[str, Any]:
    """The report as plain data, for JSON."""
    request, advice = oom.request, tried or untried_advice(oom)
    return {
        "error": request.text,
        "device": f"cuda:{request.device}",
        "gpu": oom.gpu,
        "simulated": oom.is_simulated,
        "place": _place_data(oom.frames[0].place) if oom.frames else None,
        "requested": request.requested,
        "segment": request.segment,
        "capacity": request.capacity,
        "free": request.free,
        "context": request.context,
        "other_processes": request.others,
        "in_use": oom.in_use,
        "cached": oom.cached,
        "reserved_by_cuda_graphs": request.private.unused,
        "largest_free_block": _largest_free(oom),
        "categories": {str(category): size for category, size in oom.by_category()},
        "lines": [
            {
                "file": shown(holder.place.file) if holder.place else "",
                "line": holder.place.line if holder.place else 0,
                "bytes": holder.size,
                "blocks": holder.blocks,
                "names": list(holder.names),
                "categories": [str(category) for category in holder.categories],
            }
            for holder in oom.by_line()
        ],
        "remedies": [
            {
                "cause": remedy.cause,
                "bytes": remedy.size,
                "basis": remedy.basis.value,
                "why": remedy.why,
                "code": "\n".join(remedy.code),
                "tried": None if result is None else _result_data(result),
            }
            for remedy, result in zip(advice.remedies, advice.results, strict=True)
        ],
        "together": None if advice.together is None else _together_data(advice.together),
        "missing": list(oom.missing),
    }


def _result_data(result: Result) -> dict[str, Any]:
    seen = result.seen
    return {
        "before": result.before,
        "after": result.after,
        "fits": result.fits if seen is None or not result.fits else None,
        "is_whole": result.is_whole,
        "values": None if result.values is None else asdict(result.values),
        "is_exact": result.is_exact,
        "before_is_exact": result.before_is_exact,
        "so_far": "" if seen is None else so_far(seen),
    }


def _together_data(several: Together) -> dict[str, Any]:
    return {"numbers": several.numbers, "result": _result_data(several.result)}


def program_error(oom: OutOfMemory, tried: Advice | None, traceback: str) -> ProgramError:
    """The report as a page shows it: the reason, each remedy with its edit, and its outcome."""
    advice = tried or untried_advice(oom)
    lines = [*_head(oom), *_held(oom), *_lines(oom, LINES)]
    return ProgramError(
        traceback,
        "".join(f"{line}\n" for line in _fitted(lines)),
        tuple(map(_shown_remedy, advice.remedies, advice.results)),
        tuple(_notes(oom, advice)),
        _heading(advice),
    )


def _shown_remedy(remedy: Remedy, result: Result | None) -> ShownRemedy:
    change = remedy.change
    diff = change.diff() if isinstance(change, EditedSource) else ""
    effect = f" ({remedy.effect})" if remedy.effect and result is None else ""
    tried = untried(remedy, is_tried=True) if result is None else ", ".join(outcome(remedy, result))
    code = "".join(f"{line}\n" for line in remedy.code)
    return ShownRemedy(f"{remedy.why}{effect}", code, diff, tried)


def _place_data(place: ProgramLine) -> dict[str, Any]:
    return {**asdict(place), "file": shown(place.file)}


def _head(oom: OutOfMemory) -> Iterator[str]:
    request = oom.request
    place = oom.frames[0].place if oom.frames else None
    where = f" at {_short(place)}, in {place.function}" if place else ""
    yield from wrapped(f"Out of memory on cuda:{request.device}{where}")
    if place and place.source:
        yield f"    {place.source}"
    places = {block.place for block in oom.blocks if block.node == oom.node and block.place}
    line = f" of {_short(next(iter(places)))}" if len(places) == 1 else ""
    backward = f" in {oom.node}{line}" if oom.node else ""
    part, segment = prose_size(request.requested), prose_size(request.segment)
    asked = f"a segment of {segment}{backward}"
    if part != segment:
        asked = f"{part}{backward}, which needs a segment of {segment}"
    yield from wrapped(f"  asked for {asked}")
    yield (
        f"  in use {prose_size(oom.in_use)}, cached {prose_size(oom.cached)} "
        f"(largest block {prose_size(_largest_free(oom))}), free {prose_size(request.free)}"
    )
    taken = (
        "CUDA context and other processes not known"
        if request.context is None or request.others is None
        else f"CUDA context {prose_size(request.context)}, "
        f"other processes {prose_size(request.others)}"
    )
    allowed = "" if request.allowed is None else f", {prose_size(request.allowed)} allowed"
    yield f"  of {prose_size(request.capacity)}{allowed}; {taken}"
    if request.private.unused:
        what = keepers(request.private)
        size = prose_size(request.private.unused)
        yield from wrapped(
            f"  {what} keep {size} more that no other code gets{made_at(request.private)}"
        )


def _held(oom: OutOfMemory) -> list[str]:
    categories = oom.by_category()
    named = [
        f"{prose_size(size)} {_SHORT.get(category, str(category))}" for category, size in categories
    ]
    lines: list[str] = []
    for count in range(len(named)):
        more = "" if count + 1 == len(named) else ", …"
        text = f"held at the error by {', '.join(named[: count + 1])}{more}"
        longer = wrapped(f"  {text}")
        if len(longer) > 2:
            break
        lines = longer
    return lines


def _lines(oom: OutOfMemory, room: int) -> list[str]:
    """Holders by line, and the lines that made blocks again and again."""
    holders = [holder for holder in oom.by_line() if holder.place is not None]
    if not holders:
        return _tensors(oom, room)
    grown = _grown(holders[:_HOLDERS]) if room > _LEAST_HOLDERS else ""
    listed = holders[: min(_HOLDERS, room - bool(grown))]
    places = [_short(holder.place, _PLACE) for holder in listed if holder.place]
    width = max(map(len, places))
    lines = []
    for holder, place in zip(listed, places, strict=True):
        source = holder.place.source if holder.place else ""
        names = _names(holder)
        room_left = WIDTH - 14 - width - 2 - len(names)
        code = cut(source, room_left)
        lines.append(f"  {prose_size(holder.size):>10}  {filled(place, width)}  {code}{names}")
    return [*lines, *([grown] if grown else [])]


def _tensors(oom: OutOfMemory, room: int) -> list[str]:
    """The largest tensors that have a name, where no line is known."""
    named = sorted((block for block in oom.blocks if block.name), key=lambda block: -block.size)
    return [
        f"  {prose_size(block.size):>10}  {block.name}  {'x'.join(map(str, block.shape))}"
        f" {block.dtype}".rstrip()
        for block in named[: min(_HOLDERS, room)]
    ]


def _names(holder: LineHolder) -> str:
    """The variables of a line, or the first and how many others, if they lead to most bytes."""
    if holder.named * 2 < holder.size:
        return ""
    names = ", ".join(holder.names)
    if len(holder.names) == holder.blocks and len(names) <= _NAME:
        return f"  ({names})"
    others = f" and {counted(holder.blocks - 1, 'other')}" if holder.blocks > 1 else ""
    return f"  ({cut(holder.names[0], _NAME)}{others})"


def _grown(holders: Sequence[LineHolder]) -> str:
    text = ""
    made_often = [
        holder for holder in holders if holder.blocks >= _MANY and holder.largest * 2 <= holder.size
    ]
    for holder in made_often[:_GROWN]:
        mean = prose_size(holder.size // holder.blocks)
        longer = f"{text}, " if text else "  many blocks: "
        longer += f"{holder.blocks} of {_short(holder.place)}, {mean} on average"
        if text and len(longer) > WIDTH:
            break
        text = longer
    return text


def _advice(oom: OutOfMemory, advice: Advice) -> list[str]:
    lines = lines_of(advice)
    for note in _notes(oom, advice):
        wrapped = textwrap.wrap(note, WIDTH, initial_indent="  ", subsequent_indent="  ")
        lines += _fitted(wrapped[:2])
    return [_heading(advice), *lines]


def _heading(advice: Advice) -> str:
    if not advice.remedies:
        return "no single cause stands out"
    is_tried = any(advice.results)
    head = "what helps, the most likely cause first"
    if not any(map(names_fault, advice.remedies)):
        head = "no fault stands out; what makes the program smaller"
    elif is_tried and not any(result is None or result.fits for result in advice.results):
        head = "what lowers the peak, the most likely cause first; none is enough alone"
    return f"{head}{'' if is_tried else ' (not tried)'}"


def _notes(oom: OutOfMemory, advice: Advice) -> list[str]:
    notes = [] if advice.together is None else [together(advice.together)]
    notes += [f"not tried: {advice.untried}"] * bool(advice.untried and None in advice.results)
    notes += [f"settings of the allocator were not checked: {oom.unchecked}"] * bool(oom.unchecked)
    notes += [f"could not find out: {', '.join(oom.missing)}"] * bool(oom.missing)
    return notes


def _largest_free(oom: OutOfMemory) -> int:
    blocks = [block.size for block in oom.request.free_blocks if block.stream == oom.request.stream]
    return max(blocks, default=0)


def _short(place: ProgramLine | None, longest: int = WIDTH) -> str:
    return "" if place is None else file_and_line(place.file, place.line, longest)
