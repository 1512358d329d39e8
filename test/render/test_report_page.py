"""The page of a profile: its numbers, its order, its size, and that nothing leaves it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from contrast import colours_of, contrast
from read_page import check_self_contained, read
from reports import (
    ERROR,
    MAIN,
    MIB,
    PROFILE,
    RUN,
    hostile,
    line,
    page_of,
    two_devices,
    two_ranks,
    with_history,
)
from timelines import HOSTILE

from pytorch_memlab.line_profiler import function_intervals, line_store, settrace_tracer
from pytorch_memlab.profiles.recorded import ProgramError, RecordedCall
from pytorch_memlab.records import FunctionInfo, Section
from pytorch_memlab.render.page import asset
from pytorch_memlab.render.source_view import highlighted


def rows_of(page):
    """The functions in the page's order, each with its rows."""
    return {
        function.one("h3").one("code").text: [
            [cell.text for cell in row.all() if cell.tag in ("th", "td")]
            for body in function.all("tbody")
            for row in body.all("tr")
        ]
        for function in page.all("section", "function")
    }


def facts_of(page):
    return {
        fact.one("dt").text: [one.text for one in fact.all("dd")]
        for fact in page.one("dl").all("div")
    }


def test_all_lines_of_all_functions_by_what_they_keep():
    page = check_self_contained(page_of(PROFILE))
    assert rows_of(page) == {
        "Net.step": [
            ["9", "8.0 MiB", "", "", "", "3", 'def step (self, x= "a" ):'],
            ["10 ?", "14.0 MiB", "2.0 MiB", "", "2.0 MiB", "3", "y = x @ self.w"],
            ["11", "16.0 MiB", "", "", "", "3", "return y if x else None ◀ peak"],
        ],
        "main": [
            ["1", "", "", "", "", "1", "def main ():"],
            ["2", "8.0 MiB", "8.0 MiB", "", "8.0 MiB", "1", "model = Net().cuda()"],
            ["3", "16.0 MiB", "6.0 MiB", "", "", "1", "step(model) # one of them"],
            ["4", "", ""],
            ["5", "14.0 MiB", "", "8.0 MiB", "\u22128.0 MiB", "1", "del model"],
        ],
        "unused": [["1", "", "", "", "", "0", "def unused ():"], ["2", "", "return 1"]],
    }


def test_the_head_says_what_ran_and_how_high_the_peak_is():
    page = read(page_of(PROFILE))
    assert page.one("title").text == "train.py --epochs 1: peak 16.0 MiB"
    assert page.one("h1").text == "train.py --epochs 1"
    assert page.one("p", "headline").text == (
        "Peak 16.0 MiB of 40.0 MiB (40.0%) at train.py:11 in Net.step , 50% of it parameters."
    )
    assert facts_of(page) == {
        "GPU": ["cuda:0: NVIDIA H100 80GB HBM3, simulated"],
        "Reserved at most": ["20.0 MiB"],
        "Recorded": ["2026-11-22 02:30:35 UTC, 1.2 s, shapes only"],
        "Versions": ["torch 2.13.0, python 3.11.7"],
        "Profiled": ["3 functions, 8 measured lines"],
    }
    assert page.one("details", "notes").text == "1 note simulated GPU: H100"


def test_the_peak_line_has_a_ring_and_the_head_leads_to_it():
    page = read(page_of(PROFILE))
    (ring,) = page.all("tr", "peak")
    assert ring.one("th").text == "11"
    (link,) = page.one("p", "headline").all("a")
    assert link.attributes["href"] == f"#{ring.attributes['id']}"
    for row in page.one("section", "memlab-source").all("tr"):
        for link in row.all("a"):
            assert link.attributes["href"] == f"#{row.attributes['id']}"


def test_a_history_names_the_line_and_draws_the_capacity():
    page = check_self_contained(page_of(with_history()))
    assert "at train.py:10 in step" in page.one("p", "headline").text
    (ring,) = page.all("tr", "peak")
    assert ring.one("th").text == "10 ?"
    figure = page.one("figure")
    assert "Capacity 40.0 MiB" in figure.one("figcaption").text
    (path,) = figure.all("path", "line-capacity")
    assert path.attributes["d"].startswith("M0 ")
    assert "The memory over time was not recorded" not in page.text


def test_without_a_history_the_page_says_how_to_get_one():
    page = read(page_of(PROFILE))
    assert not list(page.all("figure"))
    assert "run --history -o FILE.json keeps it" in page.text


def test_the_filter_finds_a_file_in_a_deep_folder():
    file = f"/{'deep/' * 30}train.py"
    functions = (replace(MAIN, filename=file), *PROFILE.functions[1:])
    page = read(page_of(replace(PROFILE, functions=functions)))
    assert file in [one.attributes["data-file"] for one in page.all("section", "function")]


def test_bars_are_as_long_as_what_a_line_keeps_or_frees():
    page = read(page_of(PROFILE))
    bars = {
        row.one("th").text: cell.attributes["style"]
        for row in page.one("section", "memlab-source").all("tr")
        for cell in row.all("td")
        if "style" in cell.attributes
    }
    assert bars == {"10 ?": "--k:25", "2": "--k:100", "5": "--f:100"}


def test_marks_and_failures_are_explained():
    profile = replace(PROFILE, failures={(0, 3): 512 * MIB})
    page = read(page_of(profile))
    marks = {mark.text: mark.attributes["title"] for mark in page.all("span", "mark")}
    note = "not modelled: mystery (2 calls, 4.0 KiB of outputs in all)"
    assert marks == {"?": note, "!": "out of memory: asked for 512.0 MiB"}
    assert [one.text for one in page.all("span", "failed")] == [
        "# out of memory: asked for 512.0 MiB"
    ]
    assert [one.text for one in page.all("li") if note in one.text] == [f"line 10 : {note}"]
    assert next(page.all("p", "failed")).text == "Out of memory at train.py:3."


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ([(1, 0)], "train.py:11"),  # line 3 calls the function of line 11
        ([], "train.py:3, train.py:11"),  # two ranks
        ([(1, 0), (0, 0)], "train.py:11"),  # which calls itself, too
    ],
)
def test_of_the_lines_of_a_traceback_the_innermost_has_no_memory(calls, said):
    made = tuple(
        RecordedCall(callee, caller, Path("train.py"), "f", {0: 11, 1: 3}[caller], 1)
        for caller, callee in calls
    )
    profile = replace(PROFILE, failures={(1, 3): MIB, (0, 11): MIB}, calls=made)
    assert next(read(page_of(profile)).all("p", "failed")).text == f"Out of memory at {said}."


def test_functions_without_memory_are_folded_and_last():
    page = read(page_of(PROFILE))
    *others, last = page.all("section", "function")
    assert not any(list(one.all("details", "idle")) for one in others)
    folded = last.one("details", "idle")
    assert folded.one("summary").text == "No line of it ran while memory was measured: 2 lines"
    assert "open" not in folded.attributes
    assert [one.text for one in page.one("ol").all("li")] == [
        "Net.step adds 2.0 MiB, peak 16.0 MiB ◀",
        "main adds 0 B, peak 16.0 MiB",
        "unused no memory",
    ]


def test_columns_that_were_asked_for_stand_between():
    page = read(page_of(PROFILE, ["peak", "reserved", "delta", "hits"]))
    heads = [[cell.text for cell in row.all("th")] for row in page.all("tr")]
    wanted = ["line", "peak", "kept", "freed", "self", "reserved", "delta", "hits", "code"]
    assert [one for one in heads if "code" in one] == [wanted] * 3
    assert rows_of(page)["main"][2] == [
        "3",
        "16.0 MiB",
        "6.0 MiB",
        "",
        "",
        "20.0 MiB",
        "6.0 MiB",
        "1",
        "step(model) # one of them",
    ]


@pytest.mark.parametrize(
    ("profile", "names"),
    [(two_devices, ["cuda:0", "cuda:1"]), (two_ranks, ["rank0 cuda:0", "rank1 cuda:0"])],
)
def test_each_device_has_a_part_of_its_own(profile, names):
    page = check_self_contained(page_of(profile()))
    panels = list(page.all("section", "panel"))
    assert [one.attributes["data-tab"] for one in panels] == names
    assert [next(one.all("h2")).text for one in panels] == names
    highest = max(profile().devices, key=lambda one: one.peak_active)
    assert f"on {highest.device.name} at" in page.one("p", "headline").text


def test_views_are_named_and_in_order_without_a_script():
    page = read(page_of(PROFILE))
    views = [one.attributes["data-tab"] for one in page.all("div", "panel")]
    assert views == ["Source", "At the peak", "Modules", "Flame graph"]
    assert not [one for one in page.all() if "hidden" in one.attributes and one.tag != "div"]
    assert [one.attributes["class"] for one in page.all() if "hidden" in one.attributes] == [
        "tools"
    ]


def test_names_of_a_profile_stay_text():
    text = page_of(hostile())
    page = check_self_contained(text)
    assert text.encode("utf-8")
    assert not list(page.all("img"))
    assert "\u202e" not in text
    assert "</script><img src=x onerror=alert(1)>" in page.one("h1").text
    assert HOSTILE.strip()[:10] in page.one("section", "function").text


def test_no_tables_is_never_without_a_reason():
    empty = replace(PROFILE, entries=(), peaks={}, notes=("the program ended early",))
    page = check_self_contained(page_of(empty))
    assert "No data collected: main, Net.step, unused did not run while profiled" in page.text
    assert "the program ended early" in page.text
    assert not list(page.all("section", "panel"))


def test_a_failed_run_and_its_sections_are_shown():
    run = replace(RUN, exit_status=1, exception="RuntimeError: no luck")
    section = Section("leaks", ("bytes",), (("losses", (4096,)),))
    page = read(page_of(replace(PROFILE, runs=(run,), sections=(section,))))
    assert facts_of(page)["Ended"] == ["ended with RuntimeError: no luck"]
    assert "4.0 KiB" in page.one("pre").text


def test_an_out_of_memory_error_is_explained_with_its_remedies():
    page = check_self_contained(page_of(replace(PROFILE, errors=(ERROR,))))
    error = page.one("section", "error")
    assert [one.text for one in error.all("h2")] == [
        "Why it ran out of memory",
        "What helps, the most likely cause first",
    ]
    first, second = error.one("ol", "remedies").all("li")
    assert [one.text for one in first.all("p")] == [
        "train.py:3 keeps its graph",
        "tried: peak 16.0 MiB -> 8.0 MiB, runs to its end",
    ]
    classes = [(one.attributes["class"], one.text) for one in first.all("span")]
    assert classes == [
        ("plain", "--- train.py"),
        ("plain", "+++ train.py"),
        ("plain", "@@ -1,3 +1,3 @@"),
        ("plain", "def main():"),
        ("removed", "- step(model)"),
        ("added", "+ step(model).item()"),
    ]
    assert [one.text for one in second.all("p")] == ["the batch is too large", "not tried"]
    assert [(one.attributes["class"], one.text) for one in second.all("span")] == [
        ("plain", "train.py --batch 8")
    ]
    # Without a script there is no button that does nothing.
    assert all("hidden" in one.attributes for one in error.all("button"))
    assert [one.text for one in error.all("p", "quiet")] == list(ERROR.notes)
    traceback = error.one("details")
    assert "open" not in traceback.attributes
    assert traceback.one("pre").text == " ".join(ERROR.traceback.split())


@pytest.mark.parametrize(
    ("said", "heading"),
    [
        (
            "what lowers the peak, the most likely cause first; none is enough alone",
            "What lowers the peak, the most likely cause first; none is enough alone",
        ),
        (
            "no fault stands out; what makes the program smaller (not tried)",
            "No fault stands out; what makes the program smaller (not tried)",
        ),
    ],
)
def test_the_remedies_have_the_heading_of_the_terminal(said, heading):
    page = read(page_of(replace(PROFILE, errors=(replace(ERROR, heading=said),))))
    error = page.one("section", "error")
    assert [one.text for one in error.all("h2")] == ["Why it ran out of memory", heading]
    assert len(list(error.one("ol", "remedies").all("li"))) == 2


def test_the_page_says_where_no_cause_stands_out():
    alone = replace(ERROR, remedies=(), heading="no single cause stands out")
    error = read(page_of(replace(PROFILE, errors=(alone,)))).one("section", "error")
    assert [one.text for one in error.all("h2")][1:] == ["No single cause stands out"]
    assert not list(error.all("ol"))


def test_another_error_has_its_traceback_open():
    error = ProgramError("Traceback (most recent call last):\nValueError: no\n")
    page = read(page_of(replace(PROFILE, errors=(error,))))
    assert not list(page.one("section", "error").all("h2"))
    assert "open" in page.one("section", "error").one("details").attributes


def _long(count):
    """A profile of one function; every line of it kept something."""
    text = '    hidden = self.activation(hidden @ weight) + "residual"  # of layer'
    function = replace(MAIN, source=("def main():", *(text,) * (count - 1)))
    entries = tuple(line(0, number, 100, number % 7 + 1, hits=3) for number in range(1, count + 1))
    return replace(PROFILE, functions=(function,), entries=entries, calls=(), peaks={})


def shared_bytes():
    """Of the style and the script, which a page has once."""
    names = (
        "page.css",
        "report_page.css",
        "source_view.css",
        "source_view.js",
        "sortable.js",
        "report_page.js",
    )
    return sum(len(asset(name).encode()) for name in names)


def test_400_measured_lines_take_at_most_67_kb_beside_script_and_style():
    """Each of 70 characters, with a peak and with memory that it kept."""
    assert len(page_of(_long(400)).encode()) - shared_bytes() <= 67_000


def test_a_line_with_figures_takes_at_most_122_bytes_beside_script_style_and_code():
    """The code is that of this package; a line in two is measured, as comments and ends are not."""
    files = [Path(one.__file__) for one in (function_intervals, line_store, settrace_tracer)]
    code = [line for file in files for line in file.read_text().splitlines()][:400]
    function = replace(MAIN, source=tuple(code))
    entries = tuple(
        line(0, number, 100, number % 7 - 3, hits=3)
        for number, text in enumerate(code, 1)
        if text.strip() and number % 3
    )
    assert len(entries) > 200
    profile = replace(PROFILE, functions=(function,), entries=entries, calls=(), peaks={})
    beside = shared_bytes() + len("\n".join(code).encode())
    assert (len(page_of(profile).encode()) - beside) / len(entries) <= 122.42


def test_long_functions_are_cut_into_tables_that_are_drawn_when_in_sight():
    page = read(page_of(_long(1000)))
    parts = list(page.all("div", "lines"))
    assert [len(list(one.all("tr"))) - 1 for one in parts] == [400, 400, 200]
    assert [one.attributes["style"] for one in parts] == ["--rows:400", "--rows:400", "--rows:200"]
    assert "content-visibility: auto" in asset("source_view.css")


def test_empty_lines_of_folded_code_are_left_out():
    source = ("import a", "", "def f():", "    pass", "", "", "f()", "", "", "a.b()")
    top = FunctionInfo("<module>", "/nowhere/train.py", 1, source, ((3, 4),))
    entries = tuple(line(0, number, 1, 1) for number in (1, 7, 10))
    page = read(page_of(replace(PROFILE, functions=(top,), entries=entries, calls=())))
    assert [row[0] for row in rows_of(page)["<module>"]] == ["1", "2", "7", "8", "10"]


def test_highlighting_keeps_every_sign_of_the_code():
    code = [
        "def f(x):",
        '    """a',
        '    <b> & c"""',
        "    return x if x is not None else f'{x!r}'  # <i>",
        "",
        "    @",
        "\tclass 5:",
    ]
    found = highlighted(code)
    assert [one.striptags() for one in found] == [" ".join(one.split()) for one in code]
    assert found[0] == "<b>def</b> <var>f</var>(x):"
    assert found[2] == '<u>    &lt;b&gt; &amp; c"""</u>'
    assert found[3].endswith("<i># &lt;i&gt;</i>")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_code_and_marks_stand_out_in_both_themes(theme):
    colours = {
        **colours_of(asset("page.css"), theme),
        **colours_of(asset("source_view.css"), theme),
    }
    for ink in ("keyword", "comment", "string", "name", "ring", "warn"):
        for ground in ("ground", "raised"):
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    assert contrast(colours["ground"], colours["accent"]) >= 4.5
    for bar in ("kept", "freed"):
        assert contrast(colours[bar], colours["ground"]) >= 3, bar


def test_a_line_is_not_broken_behind_its_indentation():
    """A browser breaks behind spaces first: a long word would stand below an empty line."""
    word = "loss=" + "f" * 24
    source = (f"    {word}", f"    {word[:-5]}", word, "    a " + word, "    ")
    function = replace(MAIN, source=source)
    entries = tuple(line(0, number, 1, 1) for number in range(1, 6))
    html = page_of(replace(PROFILE, functions=(function,), entries=entries, calls=(), peaks={}))
    cells = [one for one in read(html).all("td") if one.text.strip().startswith(("loss", "a "))]
    assert [one.attributes.get("class") for one in cells] == ["w", None, None, None]
    assert ".w { word-break: break-all; }" in asset("source_view.css")
