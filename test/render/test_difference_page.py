"""The page of two profiles: their numbers side by side, and both timelines on one axis."""

from __future__ import annotations

from dataclasses import replace

import pytest
from browser import CHROMIUM, title_of
from contrast_script import CONTRAST
from read_page import check_self_contained, data_of, read
from reports import MIB, PROFILE, RUN, hostile, line, two_devices, with_history

from pytorch_memlab.history.model import (
    AllocationHistory,
    Category,
    DeviceHistory,
    Event,
    EventLog,
    Frame,
    Segment,
)
from pytorch_memlab.profiles.differences import compare
from pytorch_memlab.render import difference_page

NAMES = ("a.json", "b.json")


def later(profile=PROFILE):
    """The profile after an edit: a second allocation, and a line that keeps more."""
    frame, other = Frame("/nowhere/train.py", 10, "step"), Frame("/nowhere/train.py", 11, "step")
    events = [
        Event("alloc", 0, 16 * MIB, 0, 0, 1, 0, Category.SAVED),
        Event("alloc", 16 * MIB, 8 * MIB, 0, 0, 2),
        Event("free_completed", 16 * MIB, 8 * MIB, 0, 0, 2),
        Event("alloc", 16 * MIB, 2 * MIB, 0, 0, 1),
    ]
    device = DeviceHistory(0, EventLog(events), (), [Segment(0, 40 * MIB, False, ())])
    devices = replace(profile.devices[0], peak_active=24 * MIB, peak_allocated=24 * MIB)
    return replace(
        profile,
        runs=(replace(RUN, arguments=("--batch", "2"), seconds=2.0),),
        devices=(devices, *profile.devices[1:]),
        entries=(*profile.entries[:5], line(1, 10, 24, 8, hits=3), *profile.entries[6:]),
        history=AllocationHistory([device], [(), (frame,), (other,)]),
    )


def page_of(before, after):
    return difference_page.render(NAMES, before, after, compare(before, after))


def rows_of(table):
    return [
        [cell.text for cell in row.all() if cell.tag in ("th", "td")] for row in table.all("tr")
    ]


def tables_of(root):
    return {table.attributes["aria-label"]: rows_of(table.one("table")) for table in regions(root)}


def regions(root):
    return [one for one in root.all("div", "scroll") if "aria-label" in one.attributes]


def test_both_runs_stand_side_by_side():
    root = check_self_contained(page_of(with_history(), later()))
    assert root.one("h1").text == "train.py --epochs 1, then train.py --batch 2: what changed"
    tables = tables_of(root)
    assert tables["The two runs"] == [
        ["", "before: a.json", "after: b.json"],
        ["Program", "train.py --epochs 1", "train.py --batch 2"],
        [
            "Recorded",
            "2026-11-22 02:30:35 UTC, 1.2 s, shapes only",
            "2026-11-22 02:30:35 UTC, 2.0 s, shapes only",
        ],
        ["Versions", "torch 2.13.0, python 3.11.7", "torch 2.13.0, python 3.11.7"],
    ]
    assert tables["The peaks"] == [
        ["device", "peak", "before", "after", "change", "share"],
        ["cuda:0", "active", "16.0 MiB", "24.0 MiB", "+8.0 MiB", "+50.0%"],
        ["cuda:0", "allocated", "16.0 MiB", "24.0 MiB", "+8.0 MiB", "+50.0%"],
        ["cuda:0", "reserved", "20.0 MiB", "20.0 MiB", "0 B", ""],
    ]
    assert tables["Lines whose peak is higher or lower"] == [
        ["line", "before", "after", "change", "code"],
        ["train.py:10 Net.step", "14.0 MiB", "24.0 MiB", "+10.0 MiB", "y = x @ self.w"],
    ]


def test_both_timelines_have_one_axis():
    """The higher peak, 24 MiB, and a twentieth of it are the height; four events the width."""
    figure = read(page_of(with_history(), later())).one("figure")
    assert [one.text for one in figure.all("li")] == [
        "before: peak 16.0 MiB at train.py:10 step, 1 events",
        "after: peak 24.0 MiB at train.py:11 step, 4 events",
    ]
    paths = {one.attributes["class"].split()[-1]: one.attributes["d"] for one in figure.all("path")}
    top = 24 * MIB + 24 * MIB // 20
    y = {size: round(400 - 400 * size * MIB / top, 1) for size in (0, 16, 18, 24)}
    # The first run ends after one of four events.
    assert paths["line-before"] == f"M0 {y[0]}H250.0V{y[16]}H250.0"
    assert paths["line-after"] == (
        f"M0 {y[0]}H250.0V{y[16]}H500.0V{y[24]}H750.0V{y[16]}H1000.0V{y[18]}H1000.0"
    )
    assert rows_of(figure.one("table")) == [
        ["event", "before", "after", "change"],
        ["0", "0 B", "0 B", "0 B"],
        ["1", "16.0 MiB", "16.0 MiB", "0 B"],
        ["2", "over", "24.0 MiB", ""],
        ["3", "over", "16.0 MiB", ""],
        ["4", "over", "18.0 MiB", ""],
    ]
    data = data_of(figure)
    assert [run["active"] for run in data["runs"]] == [
        [0, 16 * MIB],
        [0, 16 * MIB, 24 * MIB, 16 * MIB, 18 * MIB],
    ]
    assert [run["events"] for run in data["runs"]] == [1, 4]


def test_a_run_without_a_history_has_no_picture():
    root = read(page_of(PROFILE, later()))
    assert list(root.all("figure")) == []
    assert root.one("p", "quiet").text == (
        "One of the files has no history of cuda:0, so there is no picture over time: run"
        " --history -o FILE.json keeps it."
    )


def test_equal_profiles_say_so():
    root = read(page_of(PROFILE, PROFILE))
    assert "Every line has the same memory." in root.text
    assert list(root.all("table", "changes")) == []


def test_a_device_of_one_run_alone_has_its_peaks():
    rows = tables_of(read(page_of(PROFILE, two_devices())))["The peaks"]
    assert rows[4] == ["cuda:1", "active", "0 B", "1.0 MiB", "+1.0 MiB", "new"]


def test_names_stay_in_their_places():
    check_self_contained(page_of(hostile(), with_history(hostile())))


KEYS = """<script>
const found = {};
const press = (key) => plot.dispatchEvent(
  new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
const plot = document.querySelector(".plot");
const said = () => plot.getAttribute("aria-valuetext");
press("p");
found.peak = said();
press("p");
found.other = said();
press("ArrowRight");
found.next = said();
press("Home");
found.first = [said(), document.querySelector(".reading").checkVisibility()];
const head = document.querySelectorAll(".changes th button");
found.heads = [...head].slice(0, 5).map((one) => one.textContent);
document.title = JSON.stringify(found);
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_keys_read_both_runs(tmp_path):
    page = page_of(with_history(), later()).replace("</body>", KEYS)
    assert title_of(page, tmp_path) == {
        "peak": (
            "event 1, before 16.0 MiB train.py:10 step, after 16.0 MiB train.py:10 step, change 0 B"
        ),
        "other": "event 2, before over, after 24.0 MiB train.py:11 step",
        "next": "event 3, before over, after 16.0 MiB train.py:11 step",
        "first": ["event 0, before 0 B, after 0 B, change 0 B", True],
        "heads": ["line", "before", "after", "change", "code"],
    }


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_stands_out(theme, tmp_path):
    options = ["--blink-settings=preferredColorScheme=0"] if theme == "dark" else []
    smaller = replace(later(), entries=(*PROFILE.entries[:5], line(1, 10, 2, 1)))
    page = page_of(with_history(), smaller)
    found = title_of(page.replace("</body>", f"{CONTRAST}</body>"), tmp_path, *options)
    assert found["dark"] is (theme == "dark")
    assert found["count"] > 50
    assert found["low"] == []
