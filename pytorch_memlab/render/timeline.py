"""The timeline of a GPU as a page, read by pointer or by keys, and as a picture by matplotlib."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import add
from typing import TYPE_CHECKING, Any, Final

from .._common.text.prose_size import counted, prose_size
from .._common.text.quoted import printable
from ..history.model import Category
from ..history.timeline import OTHER_LINES
from .page import Fragment, fill, page, script_data
from .peak import number_of_events, peak_sentence
from .picture import ALARM, COLOURS, INK, QUIET, byte_marks, drawn, event_marks, finish, shortened
from .rows import place, source_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..history.model import Frame
    from ..history.timeline import Timeline


_WIDTH: Final = 1000
_HEIGHT: Final = 400
_MOST_ROWS: Final = 40
_MOST_STEPS: Final = 100
_GREY: Final = 8
_LABEL: Final = 70
"""The room that the label of a step needs, of the 1000 of the width."""
_FAR: Final = 2
"""A capacity that is more times what is reserved would leave most of the picture empty."""


def render(timelines: Sequence[Timeline], title: str = "GPU memory over time") -> str:
    """Timelines as a whole page, which loads nothing from elsewhere."""
    several_runs = len({timeline.run for timeline in timelines}) > 1
    return page(
        title,
        [
            fragment(timeline, number if several_runs else None)
            for number, timeline in enumerate(timelines)
        ],
    )


def fragment(timeline: Timeline, number: int | None = None) -> Fragment:
    """A timeline as a part of a page."""
    scene = Scene(timeline)
    points = [point + 1 for point in timeline.points]
    edges = [f"{_line(points, edge, scene)}V{_HEIGHT}H0Z" for edge in scene.stacked()]
    html = fill(
        "timeline.html",
        device=timeline.device if number is None else number,
        timeline=timeline,
        heading=heading(timeline),
        peak_place=peak_place(timeline),
        capacity=capacity_text(timeline),
        shown=scene,
        bands=list(zip(timeline.bands, band_colours(timeline), edges, strict=True)),
        reserved=_line(points, timeline.reserved, scene),
        step_note=step_note(timeline),
        byte_marks=byte_marks(scene.top),
        event_marks=event_marks(scene.last),
        phases=_spans(timeline),
        step_labels=_step_labels(timeline, scene),
        second_marks=_second_marks(timeline, scene),
        rows=_rows(timeline),
        place_of=_place,
        data=script_data(_data(timeline, scene)),
    )
    return Fragment(html, "timeline.css", ("sizes.js", "timeline.js"))


def heading(timeline: Timeline) -> str:
    """The label of a picture of the timeline: the GPU and its peak."""
    peak = timeline.peak
    active, reserved = timeline.active[peak], timeline.reserved[peak]
    number, events, dropped = timeline.points[peak], timeline.events, timeline.dropped
    return peak_sentence(timeline.name, active, reserved, number, events, dropped)


def peak_place(timeline: Timeline) -> tuple[str, str]:
    """The line of the program at the peak, such as ``train.py:12 step``, and its source."""
    return place_at(timeline, timeline.peak)


def place_at(timeline: Timeline, point: int) -> tuple[str, str]:
    """The line of the program at a point, such as ``train.py:12 step``, and its source."""
    return _place(timeline.frames[point])


def capacity_text(timeline: Timeline) -> str:
    """The memory of the GPU; empty if it is not known."""
    if timeline.capacity is None:
        return ""
    above = "" if Scene(timeline).capacity_shown else ", above the picture"
    return f"capacity {prose_size(timeline.capacity)}{above}"


def step_note(timeline: Timeline) -> str:
    """The meaning of the marks of steps; empty if there are none."""
    count, every = len(timeline.steps), _every(timeline)
    if not count:
        return ""
    which = "" if every == 1 else f", one in {every} is marked"
    least = "" if timeline.has_all_steps else "at least "
    return f"{least}{counted(count, 'optimizer step')}{which}"


def band_colours(timeline: Timeline) -> list[int]:
    """The number of the colour of each band: always the same for a category."""
    if timeline.by == "category":
        numbers = {category.value: number for number, category in enumerate(Category)}
        return [numbers[band.name] for band in timeline.bands]
    return [
        _GREY if band.name == OTHER_LINES else number for number, band in enumerate(timeline.bands)
    ]


class Scene:
    """The coordinates of a timeline's picture."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.highest = timeline.active[timeline.peak]
        reserved, capacity = max(timeline.reserved), timeline.capacity
        self.capacity_shown = capacity is not None and capacity <= _FAR * reserved
        most = max(reserved, self.highest, 1, (capacity or 0) if self.capacity_shown else 0)
        self.top = most + most // 20  # bytes at the top of the picture
        self.last = max(timeline.events, 1)  # number of the event at the right end
        self.steps = timeline.steps[:: _every(timeline)]  # those that are marked

    def stacked(self) -> list[tuple[int, ...]]:
        """The upper edge of each band, in bytes at each point."""
        sizes = (band.sizes for band in self.timeline.bands)
        return list(accumulate(sizes, lambda below, above: tuple(map(add, below, above))))

    def x(self, event: int) -> float:
        """The position of an event, from 0 to 1000."""
        return round(_WIDTH * event / self.last, 1)

    def y(self, size: int) -> float:
        """The position of a size, from 400 for 0 bytes to 0 for the top."""
        return round(_HEIGHT - _HEIGHT * size / self.top, 1)


def _every(timeline: Timeline) -> int:
    return max(1, -(-len(timeline.steps) // _MOST_STEPS))


def _line(points: Sequence[int], sizes: Sequence[int], scene: Scene) -> str:
    """A path of steps: each size holds until the next point."""
    parts = [f"M0 {scene.y(sizes[0])}"]
    for point, size in zip(points[1:], sizes[1:], strict=True):
        parts.append(f"H{scene.x(point)}V{scene.y(size)}")
    return "".join(parts) + f"H{_WIDTH}"


def _place(frame: Frame | None) -> tuple[str, str]:
    if frame is None:
        return "", ""
    return place(*frame, " "), printable(source_line(frame.filename, frame.line))


def _rows(timeline: Timeline) -> list[int]:
    """Rows of the table: the highest point of each part of the time."""
    count = len(timeline.points)
    width = -(-count // _MOST_ROWS)
    return [
        max(range(begin, min(begin + width, count)), key=timeline.active.__getitem__)
        for begin in range(0, count, width)
    ]


def _spans(timeline: Timeline) -> list[tuple[str, int, int]]:
    """The phases that follow each other, each from one moment to another."""
    spans: list[tuple[str, int, int]] = []
    before = 0
    for phase, point in zip(timeline.phases, timeline.points, strict=False):
        if spans and spans[-1][0] == phase:
            spans[-1] = (phase, spans[-1][1], point + 1)
        else:
            spans.append((phase, before, point + 1))
        before = point + 1
    return [span for span in spans if span[0] and span[1] < span[2]]


def _step_labels(timeline: Timeline, scene: Scene) -> list[tuple[int, int]]:
    """The numbers of steps that there is room for, each with the moment at which it ends."""
    if not timeline.has_all_steps:
        return []
    labels: list[tuple[int, int]] = []
    for number, step in enumerate(timeline.steps, 1):
        if not labels or scene.x(step + 1) - scene.x(labels[-1][1]) >= _LABEL:
            labels.append((number, step + 1))
    return labels


def _second_marks(timeline: Timeline, scene: Scene) -> list[tuple[int, float]]:
    """Seconds at the marks of events; nothing where no time was measured."""
    if not any(timeline.seconds):
        return []
    moments = [point + 1 for point in timeline.points]
    return [
        (mark, timeline.seconds[bisect_right(moments, mark) - 1])
        for mark in event_marks(scene.last)
    ]


def _data(timeline: Timeline, scene: Scene) -> dict[str, object]:
    """The data of the script, which draws it and reads it out."""
    places = dict.fromkeys(timeline.frames)
    numbers = {frame: number for number, frame in enumerate(places)}
    return {
        "events": scene.last,
        "points": [point + 1 for point in timeline.points],
        "seconds": timeline.seconds,
        "active": timeline.active,
        "reserved": timeline.reserved,
        "bands": [{"name": printable(band.name), "sizes": band.sizes} for band in timeline.bands],
        "places": [_place(frame) for frame in places],
        "place": [numbers[frame] for frame in timeline.frames],
        "peak": timeline.peak,
        "phases": _spans(timeline),
        "steps": [step + 1 for step in timeline.steps],
        "failures": [failure + 1 for failure in timeline.failures],
        "capacity": timeline.capacity,
        "capacityShown": scene.capacity_shown,
    }


_LONGEST: Final = 48
_LONGEST_TITLE: Final = 90


# The picture


def picture(ending: str, timelines: Sequence[Timeline], title: str = "") -> bytes:
    """Timelines as a picture, one below the other."""
    return drawn(ending, shortened(title, _LONGEST_TITLE), timelines, _timeline)


def _timeline(axes: Axes, timeline: Timeline) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    scene = Scene(timeline)
    moments = [*(point + 1 for point in timeline.points), scene.last]
    keys: list[Patch | Line2D] = []
    below = (0,) * len(timeline.points)
    for band, colour, edge in zip(
        timeline.bands, band_colours(timeline), scene.stacked(), strict=True
    ):
        face = COLOURS[colour]
        axes.fill_between(
            moments, _held(below), _held(edge), step="post", facecolor=face, linewidth=0
        )
        at_peak = prose_size(band.sizes[timeline.peak])
        keys.insert(0, Patch(facecolor=face, label=f"{shortened(band.name, _LONGEST)}, {at_peak}"))
        below = edge
    keys.append(Line2D([], [], color=INK, linewidth=1.2, label="reserved"))
    axes.step(moments, _held(timeline.reserved), where="post", color=INK, linewidth=1.2)
    if timeline.capacity is not None:
        keys.append(Line2D([], [], color=ALARM, linewidth=1.5, label=capacity_text(timeline)))
        if scene.capacity_shown:
            axes.axhline(timeline.capacity, color=ALARM, linewidth=1.5)
    if timeline.steps:
        keys.append(
            Line2D([], [], color=QUIET, linewidth=0.8, linestyle=":", label=step_note(timeline))
        )
    for step in scene.steps:
        axes.axvline(step + 1, color=QUIET, linewidth=0.8, linestyle=":")
    if timeline.failures:
        keys.append(Line2D([], [], color=ALARM, linestyle="--", label="out of memory"))
    for failure in timeline.failures:
        axes.axvline(failure + 1, color=ALARM, linestyle="--")
    _mark_peak(axes, timeline, scene)
    _finish(axes, timeline, scene, keys)


def _held(sizes: Sequence[int]) -> list[int]:
    """The last size holds until the right end."""
    return [*sizes, sizes[-1]]


def _head(timeline: Timeline) -> str:
    """The peak, its share of the GPU and its line."""
    if timeline.capacity is None:
        return heading(timeline)
    active = timeline.active[timeline.peak]
    where = shortened(peak_place(timeline)[0], _LONGEST)
    return (
        f"{timeline.name}: peak {prose_size(active)} of "
        f"{prose_size(timeline.capacity)} ({active / timeline.capacity:.1%})"
        + (f" at {where}" if where else "")
        + f", {prose_size(timeline.reserved[timeline.peak])} reserved"
    )


def _mark_peak(axes: Axes, timeline: Timeline, scene: Scene) -> None:
    moment = timeline.points[timeline.peak] + 1
    axes.plot([moment], [scene.highest], "o", color=INK, markersize=5, markeredgecolor="white")
    where = shortened(peak_place(timeline)[0], _LONGEST)
    is_right = moment > scene.last * 0.6
    axes.annotate(
        f"peak · {where}" if where else "peak",
        (moment, scene.highest),
        xytext=(-7 if is_right else 7, 5),
        textcoords="offset points",
        ha="right" if is_right else "left",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1},
        color=INK,
    )


def _finish(axes: Axes, timeline: Timeline, scene: Scene, keys: Sequence[Any]) -> None:
    """The title, the axes and the legend."""
    events_of = "events of the allocator"
    if timeline.dropped != 0:
        events_of += f": {number_of_events(timeline.events, timeline.dropped)}"
    finish(axes, _head(timeline), events_of, scene.top)
    axes.set_xlim(0, scene.last)
    events = event_marks(scene.last)
    axes.set_xticks(events, [f"{event:,}" for event in events])
    legend = axes.legend(
        handles=keys,
        loc="upper left",
        bbox_to_anchor=(1.01, 1),
        frameon=False,
        title="at the peak",
        alignment="left",
    )
    legend.get_title().set_color(QUIET)
