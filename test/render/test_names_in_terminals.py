"""No name of a saved profile acts on a terminal, reorders a line, or begins another line."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from peaks import block, holders_of
from reports import PROFILE, RUN, line
from support.sample_reports import CUDA0
from support.terminal import coloured

from pytorch_memlab.errors import ProfileError
from pytorch_memlab.line_profiler.saved_profile import SavedProfile
from pytorch_memlab.profiles.differences import compare
from pytorch_memlab.profiles.overview import Choice, overview
from pytorch_memlab.profiles.ranking import lines_that_add, lines_with_peaks
from pytorch_memlab.records import (
    Approximation,
    ApproximationKind,
    FunctionInfo,
    FunctionTable,
    Report,
    Section,
)
from pytorch_memlab.render import (
    differences,
    html,
    peak,
    rows,
    text,
    top,
)
from pytorch_memlab.saved import profile_file, tests_file

_ACTING = "\x1b]0;renamed\x07\u202e\n"
_HARMLESS = "\ufffd]0;renamed\ufffd\ufffd\ufffd"
_COLOUR = re.compile(r"\x1b\[[\d;]*m")


def profile(sign, description="GPU"):
    """A profile all of whose names have a sign in their middle."""

    def named(name):
        return f"{name}{sign}{name}"

    device = replace(CUDA0, name=named("cuda:0"), description=named(description))
    code = (f"def f():{sign}", f"    x = 1{sign}")
    function = FunctionInfo(named("f"), f"/nowhere/{named('file')}.py", 1, code)
    kind = ApproximationKind.ASSUMED
    found = Approximation(kind, named("op"), 1, 1, assumption=named("0"), place=named("place"))
    run = replace(
        RUN,
        program=named("program"),
        arguments=(named("argument"),),
        versions={named("torch"): named("2")},
        started=named("today"),
        exit_status=1,
        exception=named("Error"),
    )
    rows = ((named("row"), (1,)),)
    return replace(
        PROFILE,
        runs=(run,),
        devices=(replace(PROFILE.devices[0], device=device),),
        functions=(function,),
        entries=(
            line(0, 1, 9, 3, device=device, approximations=(found,)),
            line(0, 2, 16, device=device),
        ),
        calls=(),
        notes=(named("note"),),
        ends=(named("end"),),
        sections=(Section(named("title"), (named("now"),), rows, (named("below"),)),),
        peaks={},
        failures={(0, 2): 5},
    )


def report_of(sign):
    return SavedProfile(profile(sign)).report_of_each_device(None, ("peak", "hits"))


def report_of_run(sign):
    return overview(profile(sign), report_of(sign), Choice())


def top_of(sign):
    shown = profile(sign)
    return top.text(shown, lines_that_add(shown), lines_with_peaks(shown), 5)


def changes(sign):
    before, after = profile(sign), profile(sign, "another")
    return differences.text(("a", "b"), before, after, compare(before, after), 5)


@pytest.mark.parametrize(
    "shown",
    [
        lambda sign: text.render(report_of(sign)),
        lambda sign: text.render(report_of_run(sign)),
        lambda sign: _COLOUR.sub("", coloured(text.write, report_of(sign), 200)),
        lambda sign: _COLOUR.sub("", coloured(text.write, report_of_run(sign), 200)),
        top_of,
        changes,
    ],
    ids=["tables", "run", "coloured tables", "coloured run", "top", "diff"],
)
def test_no_name_acts(shown):
    acting, harmless = shown(_ACTING), shown(_HARMLESS)
    assert "renamed" in acting
    assert not set("\x1b\x07\u202e").intersection(acting)
    assert len(acting.splitlines()) == len(harmless.splitlines())


def test_no_name_acts_on_a_page():
    page = html.render(report_of(_ACTING))
    assert "renamed" in page
    assert not set("\x1b\x07\u202e").intersection(page)


def test_spaces_of_all_widths_stay():
    function = FunctionInfo("f", "f.py", 1, ("x = 1  # \u8ba1\u7b97\u3000y\u00a0z",))
    table = FunctionTable(function, CUDA0, {1: (2,)})
    report = Report(("hits",), (table,), ())
    for shown in (text.render(report), coloured(text.write, report), html.fragment(report)):
        assert "\u8ba1\u7b97\u3000y\u00a0z" in shown


def test_code_with_an_empty_last_line_is_coloured():
    assert [len(line.spans) > 0 for line in rows.highlighted(["if x:", ""])] == [True, False]
    assert rows.highlighted([]) == []


def test_no_name_acts_in_the_text_of_a_peak():
    shown = holders_of([block(0, 1, 1)])
    acting = replace(shown, peak=replace(shown.peak, run=f"rank0{_ACTING}"))
    assert peak.text(acting).splitlines()[0] == (
        f"rank0{_HARMLESS} cuda:0: 1.0 MiB in use at the peak, 2.0 MiB reserved (event 5 of 9)"
    )


@pytest.mark.parametrize("kind", [profile_file, tests_file])
def test_no_version_acts_in_a_message(kind):
    data = {"format": kind.FORMAT.name, "version": 99, "written_by": f"9{_ACTING}"}
    with pytest.raises(ProfileError) as raised:
        kind.load(json.dumps(data), "file.json")
    assert f"file.json was written by pytorch_memlab 9{_HARMLESS}, this is" in str(raised.value)
