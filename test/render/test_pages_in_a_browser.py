"""The scripts of the pages, as Chromium runs them: keys, buttons, zoom and search."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import pytest
from browser import CHROMIUM, NODE, title_of
from peaks import SMALL as PEAK
from timelines import SMALL as TIMELINE

from pytorch_memlab._common.text.prose_size import prose_size
from pytorch_memlab.render.page import asset, page
from pytorch_memlab.render.peak_html import flame_graph
from pytorch_memlab.render.timeline import fragment as timeline

CHECK = """<script>
const found = {};
const press = (element, key) =>
  element.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
const plot = document.querySelector(".plot");
const path = (name) => document.querySelector(name).getAttribute("d");
const labels = (name) => [...document.querySelectorAll(`${name} span`)].map((e) => e.textContent);
found.drawn = [path(".area.band-4"), path(".line.line-reserved")];
press(plot, "p");
found.peak = plot.getAttribute("aria-valuetext");
press(plot, "ArrowLeft");
found.before = [plot.getAttribute("aria-valuenow")];
found.before.push(document.querySelector(".reading code").textContent);
press(plot, "+");
found.zoomed = labels(".x-axis");
press(plot, "Escape");
found.whole = labels(".x-axis");
found.times = [labels(".second-axis"), labels(".step-axis"), labels(".phases")];
press(plot, "+");
const phase = document.querySelector(".phases span");
found.zoomedPhase = [phase.style.left, phase.style.width, labels(".step-axis")];
press(plot, "Escape");
document.querySelector('[data-line="capacity"]').click();
found.withoutCapacity = [path(".line.line-capacity"), labels(".y-axis")];
const saved = document.querySelector('button[data-band="1"]');
saved.click();
found.withoutBand = [path(".area.band-4"), saved.getAttribute("aria-pressed")];

const calls = [...document.querySelectorAll(".call")];
const extent = ({left, width}) => `${parseFloat(left)} ${parseFloat(width)}`;
const shown = () => calls.filter((call) => !call.hidden)
  .map((call) => `${call.textContent} ${extent(call.style)}`);
calls[2].focus();
found.said = document.querySelector(".said").textContent;
press(calls[2], "Enter");
found.flameZoomed = shown();
press(calls[2], "ArrowDown");
found.callee = document.activeElement.textContent;
press(document.activeElement, "Escape");
found.flameWhole = shown().length;
const search = document.querySelector("input");
search.value = "FORWARD";
search.dispatchEvent(new Event("input"));
found.matches = document.querySelector(".matches").textContent;
document.title = JSON.stringify(found);
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_what_keys_and_buttons_do(tmp_path):
    with_phases = replace(TIMELINE, phases=("", "backward", "backward", ""))
    drawn = page("both", [timeline(with_phases), flame_graph(PEAK.by_stack())])
    found = title_of(drawn.replace("</body>", CHECK), tmp_path)
    static = timeline(TIMELINE).html
    for path in found["drawn"]:
        assert path.replace("H1000V400H0Z", "") in static.replace(".0H", "H").replace(".0V", "V")
    assert found["peak"] == (
        "event 5, 1.000 s, in use 6.0 MiB, activations saved for backward 5.0 MiB,"
        " parameters 1.0 MiB, reserved 20.0 MiB, train.py:9 step"
    )
    assert found["before"] == ["2", "train.py:9 step"]
    assert found["zoomed"] == ["0", "1", "2", "3", "4", "5"]
    assert found["whole"] == ["0", "2", "4", "6", "8", "10"]
    assert found["times"] == [
        ["0 s", "0.5 s", "0.5 s", "1 s", "1 s", "2.5 s"],
        ["step 1"],
        ["backward"],
    ]
    assert found["zoomedPhase"] == ["0%", "100%", []]  # moments 0 to 5
    assert found["withoutCapacity"] == ["", [f"{4 * n}.0 MiB" if n else "0 B" for n in range(6)]]
    assert found["withoutBand"] == ["", "false"]
    assert found["said"].startswith("forward · 6.0 MiB, 37.5% · /nowhere/model.py:7")
    assert found["flameZoomed"] == [
        "all 0 100",
        "main train.py:3 0 100",
        "forward model.py:7 0 100",
        "forward linear.py:134 0 100",
    ]
    assert found["callee"] == "forward linear.py:134"
    assert found["flameWhole"] == 6
    assert found["matches"] == "2 calls, 6.0 MiB (37.5%)"


@pytest.mark.skipif(NODE is None, reason="needs Node.js")
@pytest.mark.parametrize(
    "name",
    [
        "sizes.js",
        "timeline.js",
        "flame_graph.js",
        "source_view.js",
        "sortable.js",
        "blocks.js",
        "copy.js",
        "report_page.js",
        "two_timelines.js",
    ],
)
def test_scripts_are_valid(name, tmp_path):
    (tmp_path / name).write_text(asset(name), encoding="utf-8")
    subprocess.run([NODE, "--check", tmp_path / name], check=True)


@pytest.mark.skipif(NODE is None, reason="needs Node.js")
def test_scripts_write_sizes_as_the_rest_of_a_page():
    edges = [2**power + more for power in (10, 20, 30, 40) for more in range(-60, 61)]
    halves = [unit * n // 80 for unit in (2**10, 2**20, 2**30) for n in range(1600)]
    sizes = sorted({0, 1, 2**30 - 52_429, 2**30 - 52_428, 2**30 - 52_427, *edges, *halves})
    script = f"{asset('sizes.js')}console.log(JSON.stringify({sizes}.map(sizeText)))"
    shown = subprocess.run([NODE, "-"], input=script, capture_output=True, text=True, check=True)
    assert json.loads(shown.stdout) == [prose_size(size) for size in sizes]
