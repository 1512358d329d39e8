"""Coloured and cut tables."""

import io
import re

import pytest
from support.sample_reports import (
    MARKED_TEXT,
    OUTER,
    QR,
    SAMPLE_TEXT,
    entry,
    marked_report,
    sample_report,
)
from support.terminal import Terminal, coloured

from pytorch_memlab.line_profiler.line_records import LineRecords
from pytorch_memlab.records import FunctionInfo, Report
from pytorch_memlab.render import text

LONG = FunctionInfo(
    "f",
    "f.py",
    1,
    (
        "def f():",
        '    """Say [bold]nothing[/bold].',
        "",
        '    """',
        "    hidden = torch.nn.functional.linear(torch.relu(x), weight, bias).to(device)",
        "    return hidden",
    ),
)


def plain(output: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in uncoloured(output).splitlines())


def uncoloured(output: str) -> str:
    return re.sub("\x1b\\[[0-9;]*m", "", output)


@pytest.fixture(autouse=True)
def colour_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def test_sample_tables_fit_in_80_columns() -> None:
    output = coloured(text.write, sample_report("simulated GPU: L4"), width=80)
    assert plain(output) == SAMPLE_TEXT + "\nsimulated GPU: L4\n"
    assert "\x1b[" in output


def test_marks_and_their_notes_fit_in_80_columns() -> None:
    output = coloured(text.write, marked_report(), width=80)
    folded = MARKED_TEXT.replace("may branch differently", "may branch\ndifferently")
    assert plain(output) == folded
    assert "\x1b[1;33m~\x1b[0m" in output


def test_marks_stand_in_every_piece_of_a_table() -> None:
    columns = ["active_bytes.all.peak", "inactive_split_bytes.all.peak", "hits"]
    report = LineRecords([entry(1, 9, 512, approximations=(QR,))], {1: OUTER}).display(
        columns=columns
    )
    assert plain(coloured(text.write, report.report, width=60)).count("   9? ") == 2


def test_code_is_cut_at_80_columns() -> None:
    report = LineRecords([entry(1, 5, 512)], {1: LONG}).display().report
    assert (
        plain(coloured(text.write, report, width=80))
        == """\
## f

active_bytes reserved_bytes line  code
         all            all
        peak           peak
                               1  def f():
                               2      \"""Say [bold]nothing[/bold].
                               3
                               4      \"""
     512.00B          2.00M    5      hidden = torch.nn.functional.linear(torch…
                               6      return hidden
"""
    )


def test_columns_that_leave_no_room_for_code_go_below() -> None:
    columns = ["active_bytes.all.peak", "reserved_bytes.all.peak", "allocated_bytes.all.peak"]
    columns += ["inactive_split_bytes.all.peak", "hits"]
    report = LineRecords([entry(1, 8, 512)], {1: OUTER}).display(columns=columns).report
    assert (
        plain(coloured(text.write, report, width=80))
        == """\
## outer

active_bytes reserved_bytes allocated_bytes line  code
         all            all             all
        peak           peak            peak
                                               7  def outer():
     512.00B          2.00M                    8      linear = torch.nn.Linear(…
                                               9      linear2 = torch.nn.Linear…
                                              10      inner()

inactive_split_bytes hits line  code
                 all
                peak
                             7  def outer():
                        1    8      linear = torch.nn.Linear(100, 100).cuda()
                             9      linear2 = torch.nn.Linear(100, 100).cuda()
                            10      inner()
"""
    )


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    report = LineRecords([entry(1, 5, 512)], {1: LONG}).display().report
    lengths = [len(line) for line in uncoloured(coloured(text.write, report, width)).splitlines()]
    assert max(lengths) <= width


def test_largest_value_is_bold() -> None:
    output = coloured(text.write, sample_report(), width=80)
    bold = re.findall("\x1b\\[1m *([0-9.]+[A-Z])", output)
    assert bold == ["2.00M", "2.00M", "120.00K", "2.00M", "2.00M", "120.00K", "2.00M"]


def test_code_is_highlighted() -> None:
    assert "\x1b[94mdef\x1b[0m" in coloured(text.write, sample_report(), width=80)


def test_source_with_odd_line_ends_stays_whole() -> None:
    function = FunctionInfo("f", "f.py", 1, ("def f():", "    x = '\rz'", "    y = 2"))
    report = LineRecords([entry(1, 3, 512)], {1: function}).display(columns="hits").report
    output = plain(coloured(text.write, report))
    assert "   1    3      y = 2" in output


def test_terminal_is_coloured() -> None:
    stream = Terminal()
    text.write(sample_report(), stream)
    assert "\x1b[" in stream.getvalue()
    assert plain(stream.getvalue()) == SAMPLE_TEXT


def test_pipe_is_plain() -> None:
    stream = io.StringIO()
    text.write(sample_report(), stream)
    assert stream.getvalue() == SAMPLE_TEXT


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_refused_colour_is_plain(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    stream = Terminal()
    text.write(sample_report(), stream)
    assert stream.getvalue() == SAMPLE_TEXT


def test_no_tables_says_why() -> None:
    report = Report(("hits",), (), ("f did not run",))
    stream = Terminal()
    text.write(report, stream)
    assert stream.getvalue() == coloured(text.write, report) == "No data collected: f did not run\n"
