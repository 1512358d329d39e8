"""HTML of a report, read back with the standard library's parser."""

import re
from dataclasses import replace

import pytest
from read_page import read
from support.sample_reports import (
    CUDA0,
    CUDA1,
    INNER,
    KIB,
    MEAN,
    OUTER,
    QR,
    entry,
    marked_report,
    sample_records,
    sample_report,
)

from pytorch_memlab.line_profiler.line_records import LineRecords
from pytorch_memlab.records import (
    Approximation,
    ApproximationKind,
    FunctionInfo,
    FunctionTable,
    Report,
)
from pytorch_memlab.render import html, notes as notes_in_words


def rows_of(markup, table=0):
    """The lines of a table as their texts, its head first."""
    found = list(read(markup).all("table"))[table]
    return [
        tuple(cell.text for cell in row.all() if cell.tag in ("th", "td"))
        for row in found.all("tr")
    ]


def texts(markup, tag):
    return [one.text for one in read(markup).all(tag)]


def test_sample_tables() -> None:
    markup = html.fragment(sample_report("simulated GPU: L4"))
    assert texts(markup, "h3") == ["outer", "inner"]
    assert texts(markup, "p") == [
        "Peak 120.0 KiB, at line 10 of outer and line 5 of inner",
        "simulated GPU: L4",
    ]
    head = ("line code", "active peak", "reserved peak")
    assert rows_of(markup, 0) == [
        head,
        ("7 def outer():", "0", "0"),
        ("8 linear = torch.nn.Linear(100, 100).cuda()", "40.0 KiB", "2.0 MiB"),
        ("9 linear2 = torch.nn.Linear(100, 100).cuda()", "80.0 KiB", "2.0 MiB"),
        ("10 inner() ◀ peak", "120.0 KiB", "2.0 MiB"),
    ]
    assert rows_of(markup, 1) == [
        head,
        ("4 def inner():", "80.0 KiB", "2.0 MiB"),
        ("5 torch.nn.Linear(100, 100).cuda() ◀ peak", "120.0 KiB", "2.0 MiB"),
    ]


def test_a_whole_table() -> None:
    report = sample_records().display("inner", ["active_bytes.all.peak", "hits"]).report
    code = "position:sticky;left:0;background:var(--g);padding:0;text-align:left;white-space:pre"
    code += ";font-weight:400"
    head = "padding:0 0 3px;font-weight:600;white-space:nowrap;border-bottom:1px solid #8888"
    table = (
        '<table style="border-collapse:separate;border-spacing:12px 0;margin:0 0 0 -6px;'
        'table-layout:auto;font:13px/1.45 monospace;text-align:right"><thead><tr>'
        f'<th style="{head};position:sticky;left:0;background:var(--g);text-align:left">'
        "line code</th>"
        f'<th title="active_bytes.all.peak" style="{head};min-width:88px">active peak</th>'
        f'<th title="hits" style="{head};min-width:32px">hits</th></tr></thead><tbody>'
        f'<tr><th style="{code}">4  def inner():'
        '<td style="padding:0;box-shadow:inset 59px 0 #38f6">80.0 KiB<td style=padding:0>1'
        f'<tr><th style="{code};box-shadow:-4px 0 #d9730d">5      '
        "torch.nn.Linear(100, 100).cuda()  <b>◀ peak</b>"
        '<td style="padding:0;box-shadow:inset 88px 0 #38f6">120.0 KiB<td style=padding:0>1'
        "</tbody></table>"
    )
    scroll = '<div style="overflow-x:auto" tabindex=0 role=region aria-label="Lines of inner">'
    assert f"{scroll}{table}</div>\n</div>" in html.fragment(report)


def test_the_summary_names_few_lines_and_the_device_where_there_are_several() -> None:
    entries = [entry(1, line, 2**30) for line in (7, 8, 9, 10)]
    (line,) = texts(html.fragment(LineRecords(entries, {1: OUTER}).display().report), "p")
    assert line == (
        "Peak 1.00 GiB, at line 7 of outer, line 8 of outer, line 9 of outer and 1 more line"
    )
    entries = [entry(1, 7, 5), entry(1, 7, 6, device=CUDA1)]
    (line,) = texts(html.fragment(LineRecords(entries, {1: OUTER}).display().report), "p")
    assert line == "Peak 6 B on cuda:1, at line 7 of outer"


@pytest.mark.parametrize("columns", ["hits", "reserved_bytes.all.peak", "delta"])
def test_without_a_peak_of_use_there_is_no_summary(columns) -> None:
    markup = html.fragment(sample_records().display(columns=columns).report)
    assert texts(markup, "p") == []
    assert "◀" not in markup


def test_bars_are_shares_of_the_largest_value_of_all_tables() -> None:
    report = sample_records().display(["outer", "inner"], "active_bytes.all.peak").report
    small = Report(report.columns, report.tables[1:], ())
    # 11 characters of "active peak", of 8 pixels each.
    for pixels, text in ((29, "40.0 KiB"), (59, "80.0 KiB"), (88, "120.0 KiB")):
        bar = f'<td style="padding:0;box-shadow:inset {pixels}px 0 #38f6">{text}'
        assert bar in html.fragment(report)
    assert "inset 29px" not in html.fragment(small)


def test_only_the_first_column_and_signed_ones_have_bars() -> None:
    columns = ["active_bytes.all.peak", "reserved_bytes.all.peak", "delta"]
    entries = [entry(1, 7, 80 * KIB, delta=-40 * KIB), entry(1, 8, 0, delta=120 * KIB)]
    markup = html.fragment(LineRecords(entries, {1: OUTER}).display(columns=columns).report)
    bar = '<td style="padding:0;background:linear-gradient(90deg,#0000 {}%,{} 0 {}%,#0000 0)">{}'
    first = (
        '<td style="padding:0;box-shadow:inset 88px 0 #38f6">80.0 KiB<td style=padding:0>2.0 MiB'
    )
    assert first + bar.format(0, "#8886", 25, "-40.0 KiB") in markup
    assert "<td style=padding:0>0<td style=padding:0>2.0 MiB" in markup
    assert bar.format(25, "#38f6", 100, "120.0 KiB") in markup


def test_counts_and_times() -> None:
    entries = [entry(1, 8, 0, hits=12, time=0.0015)]
    columns = ["hits", "time", "requested_bytes.all.peak", "active.large_pool.peak"]
    markup = html.fragment(LineRecords(entries, {1: OUTER}).display(None, columns).report)
    head, first, second, *_ = rows_of(markup)
    assert head == ("line code", "hits", "time", "requested peak", "active blocks large pool peak")
    assert first == ("7 def outer():",)
    assert second[1:] == ("12", "1.500ms", "", "")


def test_nothing_depends_on_what_an_untrusted_notebook_drops() -> None:
    """Style sheets and theme variables: text has no other colour, bars are translucent."""
    fragment = html.fragment(marked_report("simulated GPU: L4"))
    assert {one.tag for one in read(fragment).all()} == {
        *("div", "h3", "p", "b", "table", "thead", "tbody", "tr", "th", "td"),
        *("details", "summary", "ul", "li"),
    }
    styles = ";".join(re.findall('style="([^"]*)"', fragment)).split(";")
    colours = {one for one in styles if re.match("(--|color|background)", one)}
    assert all("var(--" in one for one in colours)
    for variable in ("--jp-layout-color0", "--vscode-editor-background", "Canvas"):
        assert variable in fragment


def test_lines_without_values_are_one_row_and_many_of_them_are_folded() -> None:
    source = ("def f():", "    a", "    b  # <b>", "    c", *["    # one"] * 10, "    d")
    function = FunctionInfo("f", "f.py", 1, source)
    entries = [entry(1, 1, 0), entry(1, 4, KIB), entry(1, 15, KIB)]
    markup = html.fragment(LineRecords(entries, {1: function}).display(columns="hits").report)
    assert "> 2      a<br> 3      b  # &lt;b&gt;<tr>" in markup
    inside = "<br>".join(f"{number:2}      # one" for number in range(5, 15))
    assert f"><details><summary>10 lines without values</summary>{inside}</details><tr>" in markup
    assert [row[0].split()[0] for row in rows_of(markup)[1:]] == ["1", "2", "4", "10", "15"]


def test_long_code_is_cut_and_its_title_has_it_all() -> None:
    code = f"    x = '{'y' * 70}'"
    function = FunctionInfo("f", "f.py", 1, (code,))
    markup = html.fragment(LineRecords([entry(1, 1, 0)], {1: function}).display().report)
    assert f' title="x = &#x27;{"y" * 70}&#x27;">1  {code[:63]}…<td' in markup


def test_four_hundred_lines_take_a_hundred_kb() -> None:
    """All of them measured, with units of three letters; there were 163 KB once."""
    source = tuple(f"    x{line} = torch.nn.functional.gelu(hidden)" for line in range(400))
    function = FunctionInfo("f", "f.py", 1, source)
    entries = [entry(1, line, 10**9 + line * 10**6, 2 * 10**9) for line in range(1, 401)]
    assert (
        len(html.fragment(LineRecords(entries, {1: function}).display().report)) < 102_600
    )  # 800 sizes with units of three letters
    half = [one for one in entries if one.line % 10 < 5]
    assert len(html.fragment(LineRecords(half, {1: function}).display().report)) < 66_800


def test_text_from_outside_is_escaped() -> None:
    attack = "<script>alert('&amp;')</script>"
    function = FunctionInfo(attack, "f.py", 1, (f'x = "{attack}"',))
    table = FunctionTable(function, CUDA0, {1: (1,)})
    page = html.render(Report(("hits",), (table,), (attack,)))
    assert "<script" not in page
    markup = page.replace("<!DOCTYPE html>", "")
    assert rows_of(markup)[1:] == [(f'1 x = "{attack}"', "1")]
    assert texts(markup, "h2") == texts(markup, "p") == [attack]
    assert texts(markup, "title") == texts(markup, "h1") == [f"Line profile of {attack}"]


def test_control_characters_of_code_do_not_hide_it() -> None:
    function = FunctionInfo("f\u202e", "f.py", 1, ("a = 1  # \u202e",))
    table = FunctionTable(function, CUDA0, {1: (1,)})
    markup = html.fragment(Report(("hits",), (table,), ()))
    assert "\u202e" not in markup
    assert rows_of(markup)[1:] == [("1 a = 1 # \ufffd", "1")]


MEAN_NOTE = "estimated: mean (1 call, 3.0 MiB of kernel memory)"
QR_NOTE = "not modelled: linalg_qr (2 calls, 1.0 KiB of outputs in all)"
READ_NOTE = "dry run: Tensor.item (2 times, assumed 0): a real run may branch differently"


def test_the_title_names_the_first_functions_of_many() -> None:
    functions = {n: replace(OUTER, qual_name=f"f{n}\u202e") for n in range(12)}
    report = LineRecords([entry(n, 8, KIB) for n in functions], functions).display().report
    named = ", ".join(f"f{n}\ufffd" for n in range(10))
    assert texts(html.render(report), "title") == [f"Line profile of {named} and 2 more"]


def test_marks_have_titles_and_each_table_its_own_notes() -> None:
    markup = html.fragment(marked_report("simulated GPU: L4"))
    marks = [(one.text, one.attributes["title"]) for one in read(markup).all("b") if one.attributes]
    of_ten = f"{QR_NOTE}\n{MEAN_NOTE}\n{READ_NOTE}"
    assert marks == [("~", MEAN_NOTE), ("*", of_ten), ("*", READ_NOTE)]
    found = [(one.one("summary").text, texts_of(one)) for one in read(markup).all("details")]
    notes = [f"line 8: {MEAN_NOTE}", *(f"line 10: {note}" for note in of_ten.split("\n"))]
    assert found == [
        ("4 notes on these lines", notes),
        ("1 note on these lines", [f"line 5: {READ_NOTE}"]),
    ]


def texts_of(details):
    return [one.text for one in details.all("li")]


def test_a_table_that_was_asked_for_has_no_notes_on_other_functions() -> None:
    entries = [entry(1, 8, 0, approximations=(MEAN,)), entry(2, 5, 0, approximations=(QR,))]
    notes = ("simulated GPU: L4", f"{MEAN_NOTE}: may differ", f"{QR_NOTE}: may be higher")
    records = LineRecords(entries, {1: OUTER, 2: INNER}, notes)
    assert notes_in_words.texts(records.display().report.notes) == notes
    assert notes_in_words.texts(records.display("outer").report.notes) == notes[:2]
    assert notes_in_words.texts(records.display("inner").report.notes) == (notes[0], notes[2])


def test_a_failed_line_says_so_behind_its_code() -> None:
    records = LineRecords([entry(1, 8, 0)], {1: OUTER}, failures={(1, 8): 2**30})
    (row,) = [row for row in rows_of(html.fragment(records.display().report)) if row[0][0] == "8"]
    assert row[0] == (
        "8 ! linear = torch.nn.Linear(100, 100).cuda() # out of memory: asked for 1.00 GiB"
    )


def test_names_of_ops_are_escaped() -> None:
    approximation = Approximation(ApproximationKind.UNMODELLED, '"><script>', 1, 0)
    page = html.render(
        LineRecords([entry(1, 8, 0, approximations=(approximation,))], {1: OUTER}).display().report
    )
    assert "<script" not in page
    assert texts(page, "li") == ['line 8: not modelled: "><script> (1 call, 0 B of outputs)']


def test_page_loads_nothing() -> None:
    page = html.render(sample_report("note"))
    assert page.startswith("<!DOCTYPE html>")
    assert '<meta charset="utf-8">' in page
    assert {one.tag for one in read(page).all()}.isdisjoint({"script", "link", "img", "iframe"})
    assert "http" not in page
    assert "url(" not in page


def test_no_tables_says_why() -> None:
    report = Report(("hits",), (), ("f <did> not run", "simulated GPU: L4"))
    assert texts(html.fragment(report), "p") == [
        "No data collected: f <did> not run",
        "simulated GPU: L4",
    ]
    assert texts(html.render(report), "title") == ["Line profile"]


def test_notebook_shows_the_fragment() -> None:
    assert sample_records().display()._repr_html_() == html.fragment(sample_report())
