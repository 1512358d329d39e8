"""Two profiles as one page: their peaks, timelines on one axis, lines, and holders of the peaks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from .._common.text.prose_size import prose_size, signed
from .._common.text.quoted import printable
from ..history.timeline import Timeline
from ..profiles.changed_tests import ChangedTest
from ..profiles.device_verdicts import verdicts
from ..profiles.differences import Differences, device_names
from ..profiles.recorded import RecordedProfile
from .differences import change_of, change_tables, percent, programs, warnings
from .memory_of_tests import change_text, size_text
from .page import Fragment, fill, page, script_data
from .picture import byte_marks, event_marks
from .report_page import timelines_of, when
from .run_notes import command, ending, sentences, versions
from .timeline import place_at

_WIDTH: Final = 1000
_HEIGHT: Final = 400
_MOST_ROWS: Final = 40
_NO_TIMELINE: Final = (
    "One of the files has no history of {name}, so there is no picture over time: run --history"
    " -o FILE.json keeps it."
)


def render(
    names: tuple[str, str],
    before: RecordedProfile,
    after: RecordedProfile,
    differences: Differences,
) -> str:
    """Two profiles as a whole page, which loads nothing from elsewhere."""
    figures = _figures(before, after)
    html = fill(
        "difference_page.html",
        names=names,
        facts=_facts(before, after),
        warnings=warnings(before, after),
        devices=differences.devices,
        figures=[("", drawn.html) if drawn else (reason, "") for reason, drawn in figures],
        tables=change_tables(differences)[1:] if differences.devices else [],
        is_same=not differences.own() and not differences.peaks(),
        change_of=change_of,
        signed=signed,
        percent=percent,
    )
    parts = tuple(drawn for _, drawn in figures if drawn)
    body = Fragment(html, "difference_page.css", ("sortable.js",), parts)
    return page(f"{programs(before, after)}: what changed", [body])


def render_tests(names: tuple[str, str], tests: Sequence[ChangedTest]) -> str:
    """The memory of tests in two files as a whole page."""
    html = fill(
        "difference_of_tests.html",
        names=names,
        rows=[
            (test.name, size_text(test.before), size_text(test.after), change_text(test))
            for test in tests
        ],
    )
    return page("GPU memory of tests: what changed", [Fragment(html, "page.css", ("sortable.js",))])


def _facts(before: RecordedProfile, after: RecordedProfile) -> list[tuple[str, str, str]]:
    """Facts of both, side by side; those that neither has are left out."""
    left, right = _facts_of(before), _facts_of(after)
    return [(name, left[name], right[name]) for name in left if left[name] or right[name]]


def _facts_of(profile: RecordedProfile) -> dict[str, str]:
    run, others = profile.runs[0], len(profile.runs) - 1
    more = f" and {others} more" if others else ""
    return {
        "Program": command(run) + more,
        "Recorded": when(run),
        "Versions": printable(versions(run)),
        "Fit": "; ".join(sentences(verdicts(profile))),
        "Ended": ending(run),
    }


# Two timelines on one axis


@dataclass(frozen=True, slots=True)
class _Pair:
    """The timelines of one device."""

    before: Timeline
    after: Timeline

    @property
    def events(self) -> int:
        return max(self.before.events, self.after.events, 1)

    @property
    def top(self) -> int:
        """Bytes at the top of the picture."""
        most = max(*self.before.active, *self.after.active, 1)
        return most + most // 20

    def x(self, event: int) -> float:
        return round(_WIDTH * event / self.events, 1)

    def y(self, size: int) -> float:
        return round(_HEIGHT - _HEIGHT * size / self.top, 1)


def _figures(before: RecordedProfile, after: RecordedProfile) -> list[tuple[str, Fragment | None]]:
    """Why there is no figure, or the figure, for each device."""
    names = device_names(before, after)
    left = {names.get(name, name): drawn for name, (drawn, _) in timelines_of(before).items()}
    right = {name: drawn for name, (drawn, _) in timelines_of(after).items()}
    used = dict.fromkeys(device.device.name for device in after.devices if device.peak_active)
    return [
        ("", _figure(number, name, _Pair(left[name], right[name])))
        if name in left and name in right
        else (_NO_TIMELINE.format(name=printable(name)), None)
        for number, name in enumerate(used)
    ]


def _figure(number: int, name: str, pair: _Pair) -> Fragment:
    runs = [("before", pair.before), ("after", pair.after)]
    html = fill(
        "two_timelines.html",
        number=number,
        name=printable(name),
        pair=pair,
        runs=[
            (label, timeline, _path(timeline, pair), _peak(timeline)) for label, timeline in runs
        ],
        byte_marks=byte_marks(pair.top),
        event_marks=event_marks(pair.events),
        rows=_rows(pair),
        change_of=change_of,
        data=script_data(
            {"events": pair.events, "runs": [_data(timeline) for _, timeline in runs]}
        ),
    )
    return Fragment(html, "timeline.css", ("sizes.js", "two_timelines.js"))


def _peak(timeline: Timeline) -> str:
    where, _ = place_at(timeline, timeline.peak)
    at = f" at {where}" if where else ""
    return f"peak {prose_size(timeline.active[timeline.peak])}{at}"


def _path(timeline: Timeline, pair: _Pair) -> str:
    """The active bytes as steps, up to the last event of the run."""
    parts = [f"M0 {pair.y(timeline.active[0])}"]
    for point, size in zip(timeline.points[1:], timeline.active[1:], strict=True):
        parts.append(f"H{pair.x(point + 1)}V{pair.y(size)}")
    return "".join(parts) + f"H{pair.x(timeline.events)}"


def _at(timeline: Timeline, event: int) -> int | None:
    """The active bytes after some events; None behind the end of the run."""
    if event > timeline.events:
        return None
    return timeline.active[bisect_right(timeline.points, event - 1) - 1]


def _rows(pair: _Pair) -> list[tuple[int, int | None, int | None]]:
    """Moments of the table, both peaks among them."""
    step = max(pair.events // _MOST_ROWS, 1)
    peaks = {timeline.points[timeline.peak] + 1 for timeline in (pair.before, pair.after)}
    moments = sorted({*range(0, pair.events + 1, step), *peaks, pair.events})
    return [(moment, _at(pair.before, moment), _at(pair.after, moment)) for moment in moments]


def _data(timeline: Timeline) -> dict[str, Any]:
    places = dict.fromkeys(timeline.frames)
    numbers = {frame: number for number, frame in enumerate(places)}
    first = {frame: place for place, frame in reversed(list(enumerate(timeline.frames)))}
    return {
        "events": timeline.events,
        "points": [point + 1 for point in timeline.points],
        "active": timeline.active,
        "reserved": timeline.reserved,
        "places": [place_at(timeline, first[frame]) for frame in places],
        "place": [numbers[frame] for frame in timeline.frames],
        "peak": timeline.peak,
    }
