"""The timeline of a GPU as an SVG or PNG picture, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .._common.prose_size import prose_size
from .picture import ALARM, COLOURS, INK, QUIET, drawn, event_marks, finish, shortened
from .timeline import Scene, band_colours, capacity_text, heading, peak_place, step_note

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..history.timeline import Timeline

_LONGEST: Final = 48
_LONGEST_TITLE: Final = 90


def _picture(kind: str, timelines: Sequence[Timeline], title: str = "") -> bytes:
    """Timelines as a picture, one below the other."""
    return drawn(kind, shortened(title, _LONGEST_TITLE), timelines, _timeline)


svg = partial(_picture, "svg")
png = partial(_picture, "png")


def _timeline(axes: Axes, timeline: Timeline) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shown = Scene(timeline)
    moments = [*(point + 1 for point in timeline.points), shown.last]
    keys: list[Patch | Line2D] = []
    below = (0,) * len(timeline.points)
    for band, colour, edge in zip(
        timeline.bands, band_colours(timeline), shown.stacked(), strict=True
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
        if shown.capacity_shown:
            axes.axhline(timeline.capacity, color=ALARM, linewidth=1.5)
    if timeline.steps:
        keys.append(
            Line2D([], [], color=QUIET, linewidth=0.8, linestyle=":", label=step_note(timeline))
        )
    for step in shown.steps:
        axes.axvline(step + 1, color=QUIET, linewidth=0.8, linestyle=":")
    if timeline.failures:
        keys.append(Line2D([], [], color=ALARM, linestyle="--", label="out of memory"))
    for failure in timeline.failures:
        axes.axvline(failure + 1, color=ALARM, linestyle="--")
    _mark_peak(axes, timeline, shown)
    _finish(axes, timeline, shown, keys)


def _held(sizes: Sequence[int]) -> list[int]:
    """The last size holds until the right end."""
    return [*sizes, sizes[-1]]


def _head(timeline: Timeline) -> str:
    """The peak, its share of the GPU and its line."""
    if timeline.capacity is None:
        return heading(timeline)
    active = timeline.active[timeline.peak]
    place = shortened(peak_place(timeline)[0], _LONGEST)
    return (
        f"{timeline.name}: peak {prose_size(active)} of "
        f"{prose_size(timeline.capacity)} ({active / timeline.capacity:.1%})"
        + (f" at {place}" if place else "")
        + f", {prose_size(timeline.reserved[timeline.peak])} reserved"
    )


def _mark_peak(axes: Axes, timeline: Timeline, shown: Scene) -> None:
    moment = timeline.points[timeline.peak] + 1
    axes.plot([moment], [shown.highest], "o", color=INK, markersize=5, markeredgecolor="white")
    place = shortened(peak_place(timeline)[0], _LONGEST)
    is_right = moment > shown.last * 0.6
    axes.annotate(
        f"peak · {place}" if place else "peak",
        (moment, shown.highest),
        xytext=(-7 if is_right else 7, 5),
        textcoords="offset points",
        ha="right" if is_right else "left",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1},
        color=INK,
    )


def _finish(axes: Axes, timeline: Timeline, shown: Scene, keys: Sequence[Any]) -> None:
    """The title, the axes and the legend."""
    finish(axes, _head(timeline), "events of the allocator", shown.top)
    axes.set_xlim(0, shown.last)
    events = event_marks(0, shown.last)
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
