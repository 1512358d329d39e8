"""A profile as one page: where the memory went, line by line, and what held it at the peak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from .._common.process.ipython import file_name
from .._common.text.prose_size import counted, prose_size
from .._common.text.quoted import printable
from ..history.holders import PeakHolders
from ..history.model import AllocationHistory, Frame
from ..history.timeline import Timeline, timeline_of
from ..profiles.device_verdicts import verdicts
from ..profiles.ranking import lines_with_peaks, own_by_line
from ..profiles.recorded import MeasuredDevice, RecordedProfile, Run
from ..records import DeviceInfo, FunctionTable, Report
from . import blocks_view, peak_html, source_view, timeline
from .notes import texts
from .page import Fragment, fill, page
from .rows import section_lines
from .run_notes import command, ending, sentences, versions
from .source_view import MeasuredTable
from .tables import no_data

_NO_TIMELINE: Final = (
    "The memory over time was not recorded. On simulated GPUs, run -o FILE.html records it. On a"
    " real GPU, run --history -o FILE.json keeps it, and show -o FILE.html draws it."
)


@dataclass(frozen=True, slots=True)
class _DeviceView:
    """The content of a page for one device."""

    measured: MeasuredDevice
    tables: tuple[MeasuredTable, ...]
    timeline: Timeline | None
    history: AllocationHistory | None  # that the timeline is of
    holders: PeakHolders | None
    peak: Frame | None  # the line of the program at the peak


def render(profile: RecordedProfile, report: Report) -> str:
    """A profile as a whole page, which loads nothing from elsewhere."""
    views = _views(profile, report)
    runs = list(dict.fromkeys(command(run) for run in profile.runs))
    heading = ", ".join(runs) or "GPU memory"
    highest = max(views, key=lambda view: view.measured.peak_active, default=None)
    peak = f": peak {prose_size(highest.measured.peak_active)}" if highest else ""
    body = _body(profile, report, views, highest)
    return page(heading + peak, [body], heading)


def _body(
    profile: RecordedProfile,
    report: Report,
    views: Sequence[_DeviceView],
    highest: _DeviceView | None,
) -> Fragment:
    devices, inner = [], []
    for number, view in enumerate(views):
        parts = _parts(number, view, report)
        drawn = None if view.timeline is None else timeline.fragment(view.timeline, number)
        devices.append(
            {
                "name": printable(view.measured.device.name),
                "headline": _headline(number, view, several=True),
                "no_timeline": _NO_TIMELINE if view.measured.peak_active else "",
                "parts": [(name, part.html) for name, part in parts],
                "timeline": drawn.html if drawn else "",
            }
        )
        inner += [*([drawn] if drawn else []), *(part for _, part in parts)]
    html = fill(
        "report_page.html",
        headline=highest and _headline(views.index(highest), highest, several=len(views) > 1),
        failed=_failure(profile),
        errors=profile.errors,
        facts=_facts(profile, report, views),
        devices=devices,
        reasons=() if report.tables else no_data(report),
        sections=[
            (printable(section.title), "\n".join(section_lines(section)))
            for section in report.sections
        ],
        notes=texts(report.notes) if report.tables else (),
    )
    scripts = (
        "report_page.js",
        *(("copy.js",) if any(error.remedies for error in profile.errors) else ()),
    )
    return Fragment(html, "report_page.css", scripts, tuple(inner))


def _parts(number: int, view: _DeviceView, report: Report) -> list[tuple[str, Fragment]]:
    """The parts of a device below its timeline, with their names."""
    parts = []
    if view.tables:
        peak = None if view.peak is None else (view.peak.filename, view.peak.line)
        source = source_view.fragment(number, view.tables, report.columns, peak)
        parts.append(("Source", source))
    if view.history is not None and view.timeline is not None:
        parts.append(("Blocks", blocks_view.fragment(number, view.history, view.timeline)))
    if view.holders is not None:
        names = ("At the peak", "Modules", "Flame graph")
        parts += zip(names, peak_html.fragments(view.holders, number), strict=True)
    return parts


def _views(profile: RecordedProfile, report: Report) -> list[_DeviceView]:
    """The devices that a table or a peak is of, in their order."""
    used = {table.device.name for table in report.tables} | profile.peaks.keys()
    tables, timelines = _measured_tables(profile, report.tables), timelines_of(profile)
    views = []
    for device in profile.devices:
        name = device.device.name
        if name in used:
            drawn, history = timelines.get(name, (None, None))
            peak = _peak_line(profile, device, drawn)
            of_device = tuple(tables.get(name, ()))
            holders = profile.peaks.get(name)
            views.append(_DeviceView(device, of_device, drawn, history, holders, peak))
    return views


def _measured_tables(
    profile: RecordedProfile, tables: Sequence[FunctionTable]
) -> dict[str, list[MeasuredTable]]:
    """The tables by the names of their devices, with what their lines did."""
    indexes = {function: place for place, function in enumerate(profile.functions)}
    added = own_by_line(profile)
    entries = {(entry.code_id, entry.line, entry.device.name): entry for entry in profile.entries}
    by_device: dict[str, list[MeasuredTable]] = {}
    for table in tables:
        index, name = indexes.get(table.function, -1), table.device.name
        lines = {
            line: entries[index, line, name]
            for line in table.rows
            if (index, line, name) in entries
        }
        own = {line: added[index, line, name] for line in lines}
        by_device.setdefault(name, []).append(MeasuredTable(table, lines, own))
    return by_device


def timelines_of(profile: RecordedProfile) -> dict[str, tuple[Timeline, AllocationHistory]]:
    """The timelines of the devices whose history is there, with it, by their names."""
    capacities = {device.device.name: device.capacity or None for device in profile.devices}
    timelines = {}
    for run, history in profile.all_histories().items():
        for device in history.used_devices():
            drawn = replace(timeline_of(history, device), run=run)
            timelines[drawn.name] = replace(drawn, capacity=capacities.get(drawn.name)), history
    return timelines


def _peak_line(
    profile: RecordedProfile, measured: MeasuredDevice, drawn: Timeline | None
) -> Frame | None:
    """The line at the peak: as the history has it, or the profiled line with a peak as high."""
    frame = None
    # A history that lacks its oldest events may lack that of the peak.
    if drawn is not None and (drawn.dropped == 0 or max(drawn.active) >= measured.peak_active):
        frame = drawn.frames[drawn.peak]
    if frame is not None and frame.filename:
        return frame
    name = measured.device.name
    own = [entry for entry in profile.entries if entry.device.name == name]
    ranked = lines_with_peaks(replace(profile, entries=tuple(own)))
    if not ranked or ranked[0].peak < measured.peak_active:
        return None
    first = ranked[0]
    return Frame(first.function.filename, first.line, first.function.qual_name)


def _headline(number: int, view: _DeviceView, *, several: bool) -> dict[str, str]:
    """The peak in a sentence: what comes before its place, the place, its address, the rest."""
    measured = view.measured
    if not measured.peak_active:
        name = printable(measured.device.name)
        return {"before": f"No memory of {name} was in use.", "place": "", "anchor": "", "rest": ""}
    parts = [f"Peak {prose_size(measured.peak_active)}"]
    if measured.capacity:
        share = f"{measured.peak_active / measured.capacity:.1%}"
        parts.append(f"of {prose_size(measured.capacity)} ({share})")
    if several:
        parts.append(f"on {printable(measured.device.name)}")
    place = anchor = ""
    if view.peak is None:
        parts.append("outside the profiled lines")
    else:
        parts.append("at ")
        file, line, name = view.peak
        place = printable(f"{file_name(file)}:{line} in {name}")
        anchor = source_view.anchor_of(number, view.tables, (file, line))
    rest = ""
    if view.holders is not None and view.holders.peak.active:
        most = view.holders.by_category()[0]
        rest = f", {most.size / view.holders.peak.active:.0%} of it {most.name}"
    return {"before": " ".join(parts), "place": place, "anchor": anchor, "rest": f"{rest}."}


def _failure(profile: RecordedProfile) -> str:
    """The innermost lines at which a GPU ran out of memory; empty if none did."""
    failed = {function for function, _ in profile.failures}
    outer = {(call.caller, call.line) for call in profile.calls if call.callee in failed}
    inner = [place for place in profile.failures if place not in outer]
    places = dict.fromkeys(
        printable(f"{file_name(profile.functions[function].filename)}:{line}")
        for function, line in inner or [*profile.failures][-1:]
    )
    return f"Out of memory at {', '.join(places)}." if places else ""


def _facts(
    profile: RecordedProfile, report: Report, views: Sequence[_DeviceView]
) -> list[tuple[str, list[str]]]:
    """Facts of the runs and of the devices, name by name."""
    names = {view.measured.device.name for view in views}
    device_verdicts = [
        verdict for verdict in verdicts(profile) if verdict.measured.device.name in names
    ]
    reserved = [prose_size(view.measured.peak_reserved) for view in views]
    runs = profile.runs
    facts = [
        ("GPU", [_device(view.measured.device) for view in views]),
        ("Fit", sentences(device_verdicts))
        if device_verdicts
        else ("Reserved at most", _on_each(views, reserved)),
        ("Recorded", list(dict.fromkeys(map(when, runs)))),
        ("Versions", list(dict.fromkeys(printable(versions(run)) for run in runs))),
        ("Ended", list(dict.fromkeys(filter(None, map(ending, runs))))),
        ("Profiled", [_count(report)]),
    ]
    return [(name, values) for name, values in facts if any(values)]


def _device(device: DeviceInfo) -> str:
    simulated = ", simulated" if device.simulated else ""
    return printable(f"{device.name}: {device.description}{simulated}")


def _on_each(views: Sequence[_DeviceView], texts: Sequence[str]) -> list[str]:
    """Texts, each with its device if there are several."""
    if len(views) < 2:
        return list(texts)
    names = [printable(view.measured.device.name) for view in views]
    return [f"{name}: {text}" for name, text in zip(names, texts, strict=True)]


def when(run: Run) -> str:
    """The day on which a run began, and how long it took."""
    shapes = ", shapes only" if run.is_dry_run else ""
    started = run.started.replace("T", " ").replace("+00:00", " UTC")
    return printable(f"{started or 'not dated'}, {run.seconds:.1f} s{shapes}")


def _count(report: Report) -> str:
    functions = len(
        {(table.function.filename, table.function.first_line) for table in report.tables}
    )
    lines = len({(table.function.filename, line) for table in report.tables for line in table.rows})
    return f"{counted(functions, 'function')}, {counted(lines, 'measured line')}"
