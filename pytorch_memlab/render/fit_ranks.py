"""The ranks of a job that differ, and what each needs, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from .._common.text.prose_size import counted, prose_size, signed
from .._common.text.quoted import printable
from ..fitting.expert_load import load_that_would_fit
from ..fitting.mesh import span
from ..fitting.verdict import NO_BOUNDS
from ..history.model import Category
from ..profiles.device_verdicts import FitOutcome
from ..profiles.job import ranks_text
from .fit import AS_COUNTED, COLUMNS, answer, failing_line
from .notes import summary_of_runs
from .rows import cut, document, wrapped
from .table import Table, fitted

if TYPE_CHECKING:
    from ..fitting.rank_classes import RankClass, RankSearch, RankVerdict, TriedOnRanks
    from ..fitting.verdict import Verdict
    from ..simulation.inspect import Bounds

_MOST_RANKS: Final = 12
"""Characters of the ranks in a row."""

_PARTS: Final = (
    ("params", (Category.PARAMETERS,)),
    ("grads", (Category.GRADIENTS,)),
    ("optimizer", (Category.OPTIMIZER_STATE,)),
    ("saved", (Category.SAVED,)),
)
"""Columns with the categories that they have; the last one has all others."""


def text(search: RankSearch, *, names_error: bool = True) -> str:
    """The ranks that differ, the fullest of them, and what would move it."""
    parts: list[list[str]] = [[*_heading(search)]]
    if search.failed is not None:
        parts.append([*_failed(search.failed, names_error=names_error)])
    elif search.classes and not _uses_no_gpu(search):
        parts += [
            [*_table(search).lines()],
            [*_limit(search)],
            [*_loads(search)],
            [*_moves(search)],
        ]
        parts.append([row for line in _notes(search) for row in wrapped(line)])
    lines: list[str] = []
    for part in filter(None, parts):
        lines += ["", *part] if lines else part
    return document(lines)


def _uses_no_gpu(search: RankSearch) -> bool:
    return not any(class_.shown.verdict.reserved_peak for class_ in search.classes)


def _heading(search: RankSearch) -> Iterator[str]:
    ran = counted(search.ranks_run, "rank")
    size = search.mesh.world_size
    memory = prose_size(search.gpu.total_memory)
    yield from wrapped(
        f"{cut(printable(search.target.name))}: {ran} of {size} without values, each on"
        f" {search.name} ({memory})"
    )
    yield f"mesh {search.mesh}"
    if search.failed is not None:
        load = (
            "" if search.failed_with is None else f" with an expert load of {search.failed_with:g}"
        )
        yield from wrapped(f"no verdict: rank {search.failed.rank} failed{load}")
    elif _uses_no_gpu(search):
        yield "no verdict: the ranks created no CUDA tensor"
    elif search.no_loads:
        yield from wrapped(f"no verdict: {search.no_loads}")
    else:
        full = [class_ for class_ in search.classes if class_.shown.verdict.fits is False]
        fitting = sum(len(class_.ranks) for class_ in search.classes) - sum(
            len(o.ranks) for o in full
        )
        if not full:
            fits = {answer(class_.shown.verdict) for class_ in search.classes}
            word = "fits so far"
            if fits == {"yes"}:
                word = "fits"
            elif fits <= {"yes", AS_COUNTED}:
                word = FitOutcome.FITS_AS_COUNTED.value
            yield from wrapped(f"{word} on all ranks{_with_loads(search)}")
        else:
            yield f"does not fit: {fitting} of {size} ranks fit"


def _with_loads(search: RankSearch) -> str:
    """The loads of experts with which the ranks fit and do not fit."""
    too_large = [loaded.load for loaded in search.by_load if loaded.verdict.fits is False]
    fitting = [loaded.load for loaded in search.by_load if loaded.verdict.fits]
    if too_large:
        return f" with even expert loads, does not fit with {too_large[0]:g}"
    return f" with expert loads up to {fitting[-1]:g}" if fitting else ""


def _loads(search: RankSearch) -> Iterator[str]:
    """The fullest rank with each load of experts, and the largest load that fits."""
    if not search.by_load:
        return
    rows = [
        (
            f"{loaded.load:g}",
            str(loaded.rank),
            _short(loaded.verdict.reserved_peak) + loaded.verdict.trial.mark,
            _left(loaded.verdict),
            answer(loaded.verdict),
        )
        for loaded in search.by_load
    ]
    heads = ("expert load", "rank", "peak", "left", "fits")
    yield from fitted(heads, rows, {0}, " ").lines()
    fitting = [loaded.load for loaded in search.by_load if loaded.verdict.fits]
    limit = load_that_would_fit(search.by_load)
    if fitting and limit is not None:
        yield from wrapped(
            f"the largest load that fits is {fitting[-1]:g}; a line to the next one leaves nothing"
            f" at {limit:.2f} (not tried)"
        )
    elif fitting:
        yield f"the largest load that fits is {fitting[-1]:g}"
    else:
        yield "none of these loads fits"


def _failed(failed: RankVerdict, *, names_error: bool) -> Iterator[str]:
    problem = failed.verdict.trial.problem
    if problem is None:
        return
    yield from failing_line(problem, f" on rank {failed.rank}")
    if names_error:
        yield from wrapped(f"  {printable(problem.message)}")


def _table(search: RankSearch) -> Table:
    rows = [_row(class_) for class_ in search.classes]
    heads = ("", "ranks", "peak", "left", *(name for name, _ in _PARTS), "other", "fits")
    names = (*search.mesh.stages, *search.uneven)
    if search.only is not None:
        names = tuple(search.mesh.sizes)
    if any(class_.shown.facts.schedule for class_ in search.classes):
        heads = (*heads[:-1], "held", heads[-1])
    else:
        rows = [(*row[:-2], row[-1]) for row in rows]
    if not names:
        rows = [("all", *row[1:]) for row in rows]
    return fitted(heads, rows, {0, 1}, " ")


def _row(rank_class: RankClass) -> tuple[str, ...]:
    judged, facts = rank_class.shown.verdict, rank_class.shown.facts
    ranks = ranks_text(rank_class.ranks)
    if len(ranks) > _MOST_RANKS:
        ranks = (
            f"{rank_class.ranks[0]}, {rank_class.ranks[1]}, ..."
            if len(rank_class.ranks) > 1
            else ranks
        )
    parts = _parts(rank_class.shown)
    return (
        span(rank_class.place),
        ranks,
        _short(judged.reserved_peak) + judged.trial.mark,
        _left(judged),
        *map(_short, parts),
        f"{facts.in_flight}/{facts.of_all_stages}" if facts.schedule else "",
        answer(judged),
    )


def _parts(rank: RankVerdict) -> list[int]:
    """The bytes at the peak in each column, and those of all other categories."""
    parts = [sum(rank.categories.get(str(name), 0) for name in names) for _, names in _PARTS]
    return [*parts, sum(rank.categories.values()) - sum(parts)]


def _compared(verdict: RankVerdict, other: RankVerdict) -> Iterator[tuple[int, int, str]]:
    names = (*(str(names[0]) for _, names in _PARTS), "other memory")
    return zip(_parts(verdict), _parts(other), names, strict=True)


def _short(size: int) -> str:
    """A size in few characters.

    >>> _short(3 * 2**30), _short(0)
    ('3.00G', '0')
    """
    if not size:
        return "0"
    return prose_size(size).replace(" GiB", "G").replace(" MiB", "M").replace(" KiB", "K")


def _left(judged: Verdict) -> str:
    return signed(judged.headroom).replace(" GiB", "G").replace(" MiB", "M")


def _limit(search: RankSearch) -> Iterator[str]:
    """The fullest rank, why it needs more than the emptiest one."""
    fullest, emptiest = search.fullest, search.emptiest
    assert fullest is not None
    assert emptiest is not None
    most, least = fullest.shown, emptiest.shown
    yield from wrapped(
        f"limit: {_name(fullest)}, {prose_size(most.verdict.reserved_peak)} of"
        f" {prose_size(most.verdict.capacity)}"
    )
    more = most.verdict.reserved_peak - least.verdict.reserved_peak
    if more > 0:
        named = sorted(
            ((part - other, name) for part, other, name in _compared(most, least)), reverse=True
        )
        why = ", ".join(f"{prose_size(size)} of {name}" for size, name in named[:2] if size > 0)
        yield from wrapped(
            f"  {prose_size(more)} more than {_name(emptiest)}" + f": {why}" * bool(why)
        )
    facts = most.facts
    if facts.schedule:
        stages = f"stage{'s' * (len(facts.stages) > 1)} {ranks_text(facts.stages)}"
        yield from wrapped(
            f"  {facts.schedule} holds {facts.in_flight} of {facts.of_all_stages} micro-batches of"
            f" {stages} at a time"
        )


def _name(rank_class: RankClass) -> str:
    ranks = f"rank{'s' * (len(rank_class.ranks) > 1)} {_few(rank_class.ranks)}"
    return f"{span(rank_class.place)} ({ranks})" if rank_class.place else ranks


def _few(ranks: Sequence[int]) -> str:
    text = ranks_text(ranks)
    return text if len(text) <= 4 * _MOST_RANKS else f"{ranks[0]}, {ranks[1]}, ... {ranks[-1]}"


def _moves(search: RankSearch) -> Iterator[str]:
    """Changes that lower the peak of the fullest rank: tried, or counted and not tried."""
    fullest = search.fullest
    assert fullest is not None
    before = fullest.shown.verdict.reserved_peak
    if search.tried:
        yield "tried, the peak of the fullest rank then:"
        for change in search.tried:
            yield from wrapped(f"  {_tried(change, before)}")
    emptiest = search.emptiest
    assert emptiest is not None
    stages = {class_.place[:1] for class_ in search.classes}
    gap = before - emptiest.shown.verdict.reserved_peak
    if fullest.shown.facts.schedule and len(stages) > 1 and gap > 0:
        half = prose_size(gap // 2)
        yield from wrapped(
            f"not tried: layers that hold {half} moved from {_stage(fullest)} to"
            f" {_stage(emptiest)} would make the two alike"
        )


def _tried(change: TriedOnRanks, before: int) -> str:
    if change.peak is None:
        return f"{change.name}: the program fails"
    saved = before - change.peak
    less = f"{prose_size(abs(saved))} {'less' if saved > 0 else 'more'}" if saved else "the same"
    return f"{change.name}: {prose_size(change.peak)} on rank {change.rank}, {less}"


def _stage(rank_class: RankClass) -> str:
    return span(rank_class.place[:1])


def _most(bounds: Bounds) -> int:
    return bounds.high


def _notes(search: RankSearch) -> Iterator[str]:
    yield COLUMNS
    if any(class_.shown.facts.schedule for class_ in search.classes):
        yield "held: the most micro-batches that were forward and not yet backward, of all"
    if search.mesh.world_size > 1:
        most = max((verdict.nccl for verdict in search.verdicts), key=_most, default=NO_BOUNDS)
        if not most.high:
            yield "no rank used a communicator of NCCL"
        else:
            yield (
                f"neither peak nor left has NCCL's buffers: about {prose_size(most.estimate)} on"
                f" the rank with most of them, at least {prose_size(most.low)} and at most"
                f" {prose_size(most.high)}"
            )
    if search.by_load:
        yield (
            "expert load: the tokens that the experts of a rank get from every rank, 1 for an even"
            " share; the tables above are for even loads"
        )
    elif search.exchanges_tokens:
        yield (
            "tokens choose their experts evenly, as their scores are not known: --expert-load"
            " 1.0,2.5 shows what a rank needs whose experts get more"
        )
    alike = [name for name in search.alike if search.mesh.sizes[name] > 2]
    if alike:
        yield (
            f"the first and the last rank of {', '.join(alike)} need the same, and those between"
            " are taken to need it too"
        )
    if len(search.uneven) > 1:
        yield f"ranks that are uneven in several of {', '.join(search.uneven)} did not run"
    yield from summary_of_runs([verdict.trial for verdict in search.verdicts])
