"""Sections of a report: between the tables and the notes, in every form."""

from __future__ import annotations

import re

from support.terminal import coloured

from pytorch_memlab.records import DeviceInfo, FunctionInfo, FunctionTable, Report, Section
from pytorch_memlab.render import html, text

SECTION = Section(
    "what holds <it>",
    ("now", "at the peak"),
    (("weights", (4096, 8192)), ("x" * 90, (None, 1))),
    ("said below",),
)
LINES = [
    "## what holds <it>",
    "",
    f"{'':54}{'now':>13}{'at the peak':>13}",
    f"{'weights':54}{'4.0 KiB':>13}{'8.0 KiB':>13}",
    f"{'x' * 53}…{'':13}{'1 B':>13}",
    "said below",
]
TABLE = FunctionTable(
    FunctionInfo("f", "f.py", 1, ("def f(): ...",)),
    DeviceInfo("cuda:0", "GPU", True),
    {1: (2,)},
)


def report(*tables):
    return Report(("hits",), tables, ("a note",), (SECTION,))


def test_text_has_sections_between_tables_and_notes():
    _, below = text.render(report(TABLE)).split("def f(): ...\n\n\n")

    assert below.splitlines() == [*LINES, "", "a note"]


def test_text_without_tables_has_sections_too():
    assert text.render(report()).splitlines()[-len(LINES) :] == LINES


def test_a_terminal_shows_the_same_lines_and_cuts_none_of_80_columns():
    shown = re.sub(r"\x1b\[[\d;]*m", "", coloured(text.write, report(TABLE), width=80)).splitlines()

    assert shown[-len(LINES) - 2 :] == [*LINES, "", "a note"]


def test_html_escapes_what_it_shows():
    page = html.fragment(report(TABLE))

    assert "what holds &lt;it&gt;" in page
    assert "<it>" not in page
    assert LINES[3] in page
    assert page.index("what holds") < page.index("a note")


def test_a_long_name_keeps_the_number_of_its_line():
    name = f"cuda:0 {'history.' * 9}[*] (modeling_llama.py:345)"
    section = Section("growth", ("now",), ((name, (4096,)),))

    (row,) = text.render(Report(("hits",), (TABLE,), (), (section,))).splitlines()[-1:]

    assert row == f"{name[:61]}…:345){'4.0 KiB':>13}"
