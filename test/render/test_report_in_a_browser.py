"""The page of a profile, as Chromium shows it: tabs, sorting, filter, links, names, contrast."""

from __future__ import annotations

from dataclasses import replace

import pytest
from browser import CHROMIUM, title_of
from contrast_script import CONTRAST
from peaks import hostile as hostile_peak
from reports import (
    ERROR,
    MAIN,
    MIB,
    PROFILE,
    STEP,
    UNUSED,
    hostile,
    line,
    page_of,
    two_devices,
    two_ranks,
    with_history,
)
from timelines import HOSTILE

from pytorch_memlab.history.model import (
    AllocationHistory,
    Category,
    DeviceHistory,
    Event,
    EventLog,
    Frame,
    Segment,
)
from pytorch_memlab.profiles.recorded import ShownRemedy

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

WAITS = "--virtual-time-budget=5000"

WATCH = """<head><script>
const wrong = [];
addEventListener("error", (event) => wrong.push(event.message));
addEventListener("securitypolicyviolation", (event) => wrong.push(event.violatedDirective));
console.error = console.warn = (...said) => wrong.push(said.join(" "));
</script>"""

USE = """<script>
const found = {};
const press = (element, key) =>
  element.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
const seen = (selector, root = document) =>
  [...root.querySelectorAll(selector)].filter((one) => one.checkVisibility());
const texts = (selector) => seen(selector).map((one) => one.textContent.trim());
const tabs = () => seen("[role=tab]").map((one) =>
  `${one.textContent}${one.getAttribute("aria-selected") === "true" ? "*" : ""}${one.tabIndex}`);
found.tabs = tabs();
found.panels = seen("[role=tabpanel]").map((one) => one.getAttribute("aria-labelledby"));
press(seen("[role=tab]")[2], "ArrowRight");
found.next = tabs();
found.focus = document.activeElement.textContent;
found.shown = texts("h2");
press(document.activeElement, "End");
found.flame = seen(".memlab-flame .call").filter((one) => one.classList.contains("narrow")).length;
press(document.activeElement, "ArrowRight");
found.round = tabs();
seen("[role=tab]")[1].click();
found.device = [tabs()[1], ...texts("h2").slice(0, 2)];
press(seen("[role=tab]")[1], "Home");

const sort = seen("select")[0];
const order = () => texts(".functions h3 code");
const sortBy = (value) => {
  sort.value = value;
  sort.dispatchEvent(new Event("change"));
  return [order(), texts("nav li code").join() === order().join()];
};
found.orders = ["name", "peak", "place", "adds"].map(sortBy);
const filter = seen("input")[0];
const search = (text) => {
  filter.value = text;
  filter.dispatchEvent(new Event("input"));
};
search("NET.");
found.filtered = [order(), texts("nav li code"), texts(".matches")];
search("other.py");
found.byFile = order();

// A line that the filter hides, in a device that is not open.
seen("[role=tab]")[1].click();
location.hash = document.querySelector("tr.peak").id;
setTimeout(() => {
  const target = document.querySelector(":target");
  found.revealed = [target.checkVisibility(), target.querySelector("th").textContent, tabs()[0]];
  location.hash = "%E0%A4%A";
  const plain = document.querySelector(".memlab-source tbody tr:not([id]) th");
  plain.click();
  const box = (one) => one.getBoundingClientRect();
  found.columns = [1, 2, 3, 4].map((place) =>
    new Set(seen(`.memlab-source thead th:nth-child(${place})`).map((one) => box(one).x)).size);
  found.tables = seen(".memlab-source table").length;
  found.unnamed = seen("button, input, select, [role=region], [role=slider], a, [tabindex='0']")
    .filter((one) => !(one.getAttribute("aria-label") || one.labels?.length
      || one.getAttribute("aria-labelledby") || one.textContent.trim()))
    .map((one) => one.outerHTML.slice(0, 90));
  const all = (selector) => [...document.querySelectorAll(selector)];
  found.emptyHeads = all("th").filter((one) => !one.textContent.trim()).length;
  found.links = all("p a, details li a").length;
  found.hidden = all("p a, details li a").filter((one) =>
    !getComputedStyle(one).textDecorationLine.includes("underline")).map((one) => one.outerHTML);
  found.misnamed = all("[aria-label]:is([role=treeitem], a, button)").filter((one) =>
    !one.getAttribute("aria-label").includes(one.textContent.trim())).map((one) => one.outerHTML);
  found.calls = all("[role=treeitem]").filter((one) => one.title && one.textContent).length;
  found.jumps = seen("[tabindex]").filter((one) => one.tabIndex > 0).length;
  found.headings = seen("h1, h2, h3").map((one) => Number(one.tagName[1]))
    .filter((level, place, all) => place && level > all[place - 1] + 1);
  found.wider = document.documentElement.scrollWidth > innerWidth;
  found.requests = performance.getEntriesByType("resource").map((one) => one.name);
  setTimeout(() => {
    found.address = [location.hash, plain.parentElement.matches(":target"), plain.textContent];
    found.wrong = wrong;
    document.title = JSON.stringify(found);
  }, 50);
}, 50);
</script></body>"""


def test_tabs_sorting_filter_and_links(tmp_path):
    profile = two_devices()
    # The longest texts that sizes have, in one of the functions.
    longest = line(0, 2, 1023, -1023, hits=999_999)
    page = page_of(with_history(replace(profile, entries=(longest, *profile.entries[2:]))))
    found = title_of(page.replace("<head>", WATCH).replace("</body>", USE), tmp_path, WAITS)
    views = ["Source*0", "Blocks-1", "At the peak-1", "Modules-1", "Flame graph-1"]
    assert found["tabs"] == ["cuda:0*0", "cuda:1-1", *views]
    assert found["panels"] == ["memlab-device-0-tab", "memlab-view-0-0-tab"]
    assert found["next"][2:] == ["Source-1", "Blocks*0", *views[2:]]
    assert found["focus"] == "Blocks"
    assert found["shown"][2] == "Blocks in use"
    assert "Lines of the program" not in found["shown"]
    assert found["flame"] < 4  # the picture has its width, so that calls have room for their names
    assert found["round"][2:] == views
    assert found["device"] == ["cuda:1*0", "cuda:1", "Lines of the program"]
    assert found["orders"] == [
        [["main", "Net.step", "unused"], True],
        [["main", "Net.step", "unused"], True],
        [["main", "Net.step", "unused"], True],
        [["Net.step", "main", "unused"], True],
    ]
    assert found["filtered"] == [["Net.step"], ["Net.step"], ["1 of 3 functions"]]
    assert found["byFile"] == ["unused"]
    assert found["revealed"] == [True, "10?", "cuda:0*0"]
    assert found["address"] == ["#d0-1-9", True, "9"]
    assert found["columns"] == [1, 1, 1, 1]
    assert found["tables"] >= 2
    assert not found["wider"]
    assert found["unnamed"] == []
    assert (found["jumps"], found["headings"]) == (0, [])
    assert (found["emptyHeads"], found["hidden"], found["misnamed"]) == (0, [], [])
    assert (found["links"] > 2, found["calls"] > 4) == (True, True)
    assert (found["wrong"], found["requests"]) == ([], [])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_stands_out(theme, tmp_path):
    options = ["--blink-settings=preferredColorScheme=0"] if theme == "dark" else []
    profile = replace(with_history(two_devices()), errors=(ERROR,))
    page = page_of(profile).replace("</body>", f"{CONTRAST}</body>")
    found = title_of(page, tmp_path, *options)
    assert found["dark"] is (theme == "dark")
    assert found["count"] > 200
    assert found["low"] == []


COPY = """<script>
const copied = [];
const buttons = [...document.querySelectorAll("button.copy")];
Object.defineProperty(navigator, "clipboard", {configurable: true, value: {
  writeText: async (text) => { copied.push(text); },
}});
buttons[0].click();
setTimeout(() => {
  Object.defineProperty(navigator, "clipboard", {value: undefined});
  buttons[1].click();
  setTimeout(() => {
    document.title = JSON.stringify({
      copied, said: buttons.map((one) => one.textContent), selected: String(getSelection()),
      hidden: buttons.some((one) => one.hidden),
    });
  }, 20);
}, 20);
</script></body>"""


def test_a_button_copies_the_edit_of_a_remedy(tmp_path):
    page = page_of(replace(PROFILE, errors=(ERROR,)))
    found = title_of(page.replace("</body>", COPY), tmp_path, WAITS)
    assert found == {
        "copied": [ERROR.remedies[0].diff],
        "said": ["Copied", "Selected: press Ctrl+C"],
        "selected": ERROR.remedies[1].code.rstrip(),
        "hidden": False,
    }


EXECUTED = """<script>
window.alert = (said) => wrong.push(`alert ${said}`);
const copied = [];
Object.defineProperty(navigator, "clipboard", {configurable: true, value: {
  writeText: async (text) => { copied.push(text); },
}});
document.querySelectorAll("button, [role=tab]").forEach((one) => one.click());
document.querySelectorAll("input").forEach((one) => {
  one.value = "<img src=x onerror=alert(2)>";
  one.dispatchEvent(new Event("input"));
});
document.querySelectorAll("[role=slider], [tabindex='0']").forEach((one) => {
  for (const key of ["End", "Enter", "p"]) {
    one.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
  }
});
setTimeout(() => {
  document.title = JSON.stringify({
    wrong, copied, images: document.images.length,
    tabs: document.querySelectorAll("[role=tab]").length,
    shown: ["h1", "dd", ".memlab-source code", ".memlab-flame .call", "#memlab-view-0-1", "figure"]
      .filter((place) => [...document.querySelectorAll(place)].some((one) =>
        one.textContent.includes("<img src=x onerror=alert(1)>"))),
  });
}, 50);
</script></body>"""


def test_names_execute_nothing_and_are_copied_as_they_are(tmp_path):
    """Of files, functions, lines, arguments, errors, remedies, blocks, modules and devices."""
    events = [Event("alloc", 0, MIB, 0, 0, 1, 0, Category.SAVED)]
    device = DeviceHistory(0, EventLog(events), (), [Segment(0, 20 * MIB, False, ())])
    frame = Frame(f"/nowhere/{HOSTILE}.py", 1, HOSTILE)
    history = AllocationHistory([device], [(), (frame,)])
    remedies = (
        ShownRemedy("edit", "", f"--- {HOSTILE}+x = '{HOSTILE}'", "tried"),
        ShownRemedy("`[x](javascript:alert(1))`", "x = '</pre><b>$a$&amp;'\n", "", "not tried"),
    )
    error = replace(ERROR, remedies=remedies)
    profile = replace(hostile(), history=history, peaks={"cuda:0": hostile_peak()}, errors=(error,))
    page = page_of(profile).replace("<head>", WATCH).replace("</body>", EXECUTED)
    found = title_of(page, tmp_path, WAITS)
    assert found["wrong"] == []
    assert found["images"] == 0
    assert found["tabs"] == 5
    places = [
        "h1",
        "dd",
        ".memlab-source code",
        ".memlab-flame .call",
        "#memlab-view-0-1",
        "figure",
    ]
    assert found["shown"] == places
    # A character that reverses what follows, and half of one, would hide what is pasted.
    shown = HOSTILE.replace("\u202e", "\ufffd").replace("\ud800", "\ufffd")
    assert found["copied"] == [f"--- {shown}+x = '{shown}'\n", "x = '</pre><b>$a$&amp;'\n"]


PHONE = """<script>
const lines = document.querySelector("tr.peak").closest(".lines");
lines.style.contentVisibility = "visible";  // as if it were in sight
const code = [...lines.querySelectorAll("tbody td:last-child")]
  .find((one) => one.textContent.includes("yyyy")).getBoundingClientRect();
const found = { wider: lines.scrollWidth > lines.clientWidth, inside: code.right <= innerWidth };
lines.querySelector("table").style.minWidth = "800px";
lines.scrollLeft = 200;
const number = lines.querySelector("tbody th").getBoundingClientRect();
document.title = JSON.stringify({
  ...found,
  wraps: code.height > 40,
  pageIsWider: document.documentElement.scrollWidth > innerWidth,
  sticks: Math.abs(number.left - lines.getBoundingClientRect().left) < 1,
  scrolled: lines.scrollLeft > 0,
  width: innerWidth,
});
parent.postMessage(document.title, "*");
</script></body>"""


def test_code_wraps_and_line_numbers_stay_on_a_phone(tmp_path):
    """Chromium has no window of 390 pixels, but a frame can be as wide."""
    wide = replace(STEP, source=(*STEP.source[:2], f"    return {'y' * 80}"))
    page = page_of(with_history(replace(PROFILE, functions=(MAIN, wide, UNUSED))))
    (tmp_path / "inner.html").write_text(page.replace("</body>", PHONE), encoding="utf-8")
    frame = (
        "<!DOCTYPE html><title>{}</title><script>"
        'addEventListener("message", ({data}) => { document.title = data; });</script>'
        '<iframe src="inner.html" width="390" height="800" style="border:0"></iframe>'
    )
    found = title_of(frame, tmp_path, WAITS)
    assert found == {
        "wider": False,
        "inside": True,
        "wraps": True,
        "pageIsWider": False,
        "sticks": True,
        "scrolled": True,
        "width": 390,
    }


BLOCKS = """<script>
const seen = (selector, root = document) =>
  [...root.querySelectorAll(selector)].filter((one) => one.checkVisibility());
const texts = (selector, root) => seen(selector, root).map((one) => one.innerText.trim());
const found = {};
const buttons = () => texts("button.holds");
const rowOf = (line) => [...document.querySelectorAll("#memlab-source-0 tbody tr")]
  .find((row) => parseInt(row.cells[0].textContent, 10) === line);
const press = (element, key) =>
  element.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
found.lines = seen("button.holds").map((one) => one.getAttribute("aria-label"));
rowOf(10).lastElementChild.click();
found.expanded = seen("button.holds")[0].ariaExpanded;
found.below = texts("tr.held");
seen("tr.held summary")[0].click();
const plot = seen(".plot")[0];
setTimeout(() => {
  found.facts = texts("tr.held .facts");
  found.links = seen("tr.held .facts a").map((one) => one.getAttribute("href"));
  press(plot, "Home");
  press(plot, "Enter");
  found.before = texts("tr.held");
  found.marker = seen(".chosen").length;
  press(plot, "Escape");
  found.again = texts("tr.held");
  found.noMarker = seen(".chosen").length;
  rowOf(10).querySelector("button").click();
  found.closed = [seen("tr.held").length, seen("button.holds")[0].ariaExpanded];
  rowOf(10).querySelector("button").click();
  seen("thead button").find((one) => one.closest("table").contains(rowOf(10))).click();
  found.sorted = [seen("tr.held").length, seen("button.holds")[0].ariaExpanded];
  seen("[role=tab]").find((one) => one.textContent === "Blocks").click();
  found.all = texts(".memlab-blocks .list");
  document.title = JSON.stringify(found);
}, 50);
</script></body>"""


def test_a_line_shows_its_blocks_at_the_chosen_moment(tmp_path):
    page = page_of(with_history()).replace("</body>", BLOCKS)
    found = title_of(page, tmp_path, WAITS)
    block = "16.0 MiB activations saved for backward train.py:10 step"
    at_peak = f"At the peak, event 1: 16.0 MiB in 1 block\n{block}"
    assert found["lines"] == ["blocks of line 10"]
    assert found["expanded"] == "true"
    assert found["below"] == [at_peak]
    assert found["facts"] == [
        "allocated at event 1, not freed\nallocated by, innermost first\ntrain.py:10 step"
    ]
    assert found["links"] == ["#d0-1-10"]
    assert found["before"] == ["At the chosen moment, event 0: 0 B in 0 blocks"]
    assert (found["marker"], found["noMarker"]) == (1, 0)
    assert found["again"] == [at_peak]
    assert found["closed"] == [0, "false"]
    assert found["sorted"] == [0, "false"]
    assert found["all"] == [at_peak]


SORT = """<script>
const seen = (selector) =>
  [...document.querySelectorAll(selector)].filter((one) => one.checkVisibility());
const table = seen(".memlab-source table")[1];
const numbers = () => [...table.tBodies[0].rows].map((row) =>
  parseInt(row.cells[0].textContent, 10));
const [line, peak, kept, freed, own, hits, code] = table.querySelectorAll("thead button");
const states = () => [...table.querySelectorAll("th[aria-sort]")].map((one) =>
  `${one.textContent} ${one.ariaSort}`);
const found = {heads: [...table.tHead.rows[0].cells].map((one) => one.textContent), orders: []};
for (const button of [own, own, own, peak, code]) {
  button.click();
  found.orders.push([numbers(), states()]);
}
const filter = seen("input[type=search]")[0];
filter.value = "One Of";
filter.dispatchEvent(new Event("input"));
found.byCode = seen(".functions h3 code").map((one) => one.textContent);
found.marked = seen("tr.found").map((one) => parseInt(one.cells[0].textContent, 10));
filter.value = "";
filter.dispatchEvent(new Event("input"));
found.unmarked = seen("tr.found").length;
document.title = JSON.stringify(found);
</script></body>"""


def test_tables_sort_by_a_head_and_the_filter_finds_code(tmp_path):
    found = title_of(page_of(PROFILE).replace("</body>", SORT), tmp_path, WAITS)
    assert found["heads"] == ["line", "peak", "kept", "freed", "self", "hits", "code"]
    assert found["orders"] == [
        [[2, 5, 1, 3, 4], ["self descending"]],
        [[5, 2, 1, 3, 4], ["self ascending"]],
        [[1, 2, 3, 4, 5], []],
        [[3, 5, 2, 1, 4], ["peak descending"]],
        [[3, 2, 5, 1, 4], ["code descending"]],
    ]
    assert found["byCode"] == ["main"]
    assert found["marked"] == [3]
    assert found["unmarked"] == 0


RANKS = """<script>
const found = {};
const seen = (selector) =>
  [...document.querySelectorAll(selector)].filter((one) => one.checkVisibility());
const texts = (selector) => seen(selector).map((one) => one.textContent.trim());
const state = () => ({
  tabs: seen("[role=tablist]")[0].textContent,
  chosen: texts("[role=tab][aria-selected=true]"),
  heading: texts("h2")[0],
  kept: texts("tbody tr td:nth-child(5):not(:last-child)").filter(Boolean),
  peak: texts("tr.peak th"),
});
found.first = state();
seen("[role=tab]")[1].click();
found.second = state();
found.wrong = wrong;
document.title = JSON.stringify(found);
</script></body>"""


def test_ranks_of_a_merged_profile_are_tabs(tmp_path):
    page = page_of(two_ranks()).replace("<head>", WATCH).replace("</body>", RANKS)
    found = title_of(page, tmp_path)
    first, second = found["first"], found["second"]
    assert first["tabs"] == second["tabs"] == "rank0 cuda:0rank1 cuda:0"
    assert first["chosen"][0] == first["heading"] == "rank0 cuda:0"
    assert second["chosen"][0] == second["heading"] == "rank1 cuda:0"
    assert (first["kept"], first["peak"]) == (
        ["2.0 MiB", "8.0 MiB", "\N{MINUS SIGN}8.0 MiB"],
        ["11"],
    )
    assert (second["kept"], second["peak"]) == (["8.0 MiB"], ["3"])
    assert found["wrong"] == []
