"""HTML of a report, read back with the standard library's parser."""

import re
from html.parser import HTMLParser

from sample_reports import CUDA0, KIB, OUTER, entry, marked_report, seed_records, seed_report

from pytorch_memlab.line_profiler.line_records import LineRecords
from pytorch_memlab.records import FunctionInfo, FunctionTable, Gap, GapKind, Report
from pytorch_memlab.render import html


class Markup(HTMLParser):
    """Collects what a reader sees: headings and notes by tag, and the lines of every column."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: dict[str, list[str]] = {}
        self.tables: list[list[list[str]]] = []
        self._open: list[str] = []
        self._column_ends_at: list[int] = []
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        style = dict(attrs).get("style") or ""
        if tag == "br":
            self._add("\n")
            return
        if tag == "meta":
            return
        self._open.append(tag)
        if "white-space:pre" in style:
            self.tables.append([])
        elif style == html._CODE or ("text-align:right" in style and "inline" not in style):
            self.tables[-1].append([""])
            self._column_ends_at.append(len(self._open))
        elif tag != "span":
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        if self._column_ends_at and len(self._open) == self._column_ends_at[-1]:
            self._column_ends_at.pop()
        elif self._column_ends_at and tag == "div" and not self._column()[-1].endswith("\n"):
            self._add("\n")
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self._add(data)

    def _add(self, text: str) -> None:
        if self._column_ends_at:
            self._column()[-1] += text
        elif self._open and self._open[-1] in self.texts:
            self.texts[self._open[-1]][-1] += text

    def _column(self) -> list[str]:
        return self.tables[-1][-1]

    def columns(self, table: int = 0) -> list[list[str]]:
        """The lines of each column, its head's three included."""
        return [
            [line.removesuffix(" ") for line in column[0].removesuffix("\n").split("\n")]
            for column in self.tables[table]
        ]

    def rows(self, table: int = 0) -> list[tuple[str, ...]]:
        """The lines of a table, those of its head included; every column has as many."""
        return list(zip(*self.columns(table), strict=True))


def test_seed_tables() -> None:
    markup = Markup(html.fragment(seed_report("simulated GPU: L4")))
    assert markup.texts["h3"] == ["outer", "inner"]
    assert markup.texts["p"] == ["simulated GPU: L4"]
    head = [
        ("active_bytes", "reserved_bytes", "line", "code"),
        ("all", "all", "", ""),
        ("peak", "peak", "", ""),
    ]
    assert markup.rows(0) == [
        *head,
        ("0.00B", "0.00B", "7", "def outer():"),
        ("40.00K", "2.00M", "8", "    linear = torch.nn.Linear(100, 100).cuda()"),
        ("80.00K", "2.00M", "9", "    linear2 = torch.nn.Linear(100, 100).cuda()"),
        ("120.00K", "2.00M", "10", "    inner()"),
    ]
    assert markup.rows(1) == [
        *head,
        ("80.00K", "2.00M", "4", "def inner():"),
        ("120.00K", "2.00M", "5", "    torch.nn.Linear(100, 100).cuda()"),
    ]


def test_bars_are_shares_of_the_largest_value_of_all_tables() -> None:
    report = seed_records().display(["outer", "inner"], "active_bytes.all.peak").report
    small = Report(report.columns, report.tables[1:], ())
    # 12 characters of "active_bytes" and a space, of 8 pixels each.
    for pixels, text in ((35, "40.00K"), (69, "80.00K"), (104, "120.00K")):
        bar = f'<div style="box-shadow:inset {pixels}px 0 #38f6">{text} </div>'
        assert bar in html.fragment(report)
    assert "min-width:104px" in html.fragment(report)
    assert "inset 35px" not in html.fragment(small)


def test_each_column_has_its_colour() -> None:
    markup = html.fragment(seed_report())
    assert "#38f6" in markup
    assert "#f826" in markup


def test_negative_delta_has_a_bar_left_of_zero() -> None:
    entries = [entry(1, 7, 0, delta=-40 * KIB), entry(1, 8, 0, delta=120 * KIB)]
    markup = html.fragment(LineRecords(entries, {1: OUTER}).display(columns="delta").report)
    bar = '<div style="background:linear-gradient(90deg,#0000 {}%,{} 0 {}%,#0000 0)">{} </div>'
    assert bar.format(0, "#8886", 25, "-40.00K") in markup
    assert bar.format(25, "#38f6", 100, "120.00K") in markup
    assert [row[0] for row in Markup(markup).rows()][3:] == ["-40.00K", "120.00K", "", ""]


def test_counts_times_and_gaps() -> None:
    entries = [entry(1, 8, 0, hits=12, time=0.0015)]
    columns = ["hits", "time", "requested_bytes.all.peak"]
    markup = Markup(html.fragment(LineRecords(entries, {1: OUTER}).display(None, columns).report))
    assert [row[:4] for row in markup.rows()[3:5]] == [
        ("", "", "", "7"),
        ("12", "1.500ms", "", "8"),
    ]


def test_an_untrusted_notebook_and_a_dark_theme_lose_nothing() -> None:
    """A sanitizer drops style sheets and theme variables; the theme has the colours."""
    fragment = html.fragment(marked_report("simulated GPU: L4"))
    markup = Markup(fragment)
    assert markup.tags == {"div", "h3", "p", "span", "br"}
    assert markup.attributes == {"style", "title"}
    assert "var(" not in fragment
    styles = "".join(re.findall('style="([^"]*)"', fragment)).replace(html._MARK, "")
    assert re.findall("(?<!-)color:", styles) == []
    assert re.findall("background:(?!linear)", styles) == []


def test_four_hundred_lines_take_60_kb() -> None:
    source = tuple(f"    x{line} = torch.nn.functional.gelu(hidden)" for line in range(400))
    function = FunctionInfo("f", "f.py", 1, source)
    entries = [entry(1, line, 10**9 + line * 10**6, 2 * 10**9) for line in range(1, 401)]
    fragment = html.fragment(LineRecords(entries, {1: function}).display().report)
    assert len(fragment) / 400 < 170
    half = LineRecords(entries[::2], {1: function}).display().report
    assert len(html.fragment(half)) < 60_000


def test_text_from_outside_is_escaped() -> None:
    attack = "<script>alert('&amp;')</script>"
    function = FunctionInfo(attack, "f.py", 1, (f'x = "{attack}"',))
    table = FunctionTable(function, CUDA0, {1: (1,)})
    page = html.render(Report(("hits",), (table,), (attack,)))
    assert "<script" not in page
    markup = Markup(page.replace("<!DOCTYPE html>", ""))
    assert markup.rows()[3:] == [("1", "1", f'x = "{attack}"')]
    assert markup.texts["h3"] == markup.texts["p"] == [attack]
    assert markup.texts["title"] == [f"Line profile of {attack}"]


MARK = f'<span style="{html._MARK}" title="{{}}">{{}}</span>'
NOTE = f'<p style="{html._LINE_NOTE}">{{}}</p>'
MEAN = "estimated: mean (1 call, 3.00M of kernel memory)"
QR = "not modelled: linalg_qr (2 calls, 1.00K of outputs)"
READ = "dry run: Tensor.item (2 times, assumed 0): a real run may branch differently"


def test_marks_and_notes_are_all_that_a_marked_table_has_more() -> None:
    expected = html.fragment(seed_report("simulated GPU: L4"))
    title = f"{QR}\n{MEAN}\n{READ}"
    for number, text, sign in ((8, MEAN, "~"), (10, title, "?"), (5, READ, "?")):
        expected = re.sub(
            rf"(?<=[ >\n]){number}(?= \n| </div>)", f"{number}{MARK.format(text, sign)}", expected
        )
    outer, inner, end = expected.split("</div></div>\n", 2)
    notes = [f"line 8: {MEAN}", *(f"line 10: {note}" for note in (QR, MEAN, READ))]
    of_outer = "".join(f"{NOTE.format(note)}\n" for note in notes)
    of_inner = f"{NOTE.format(f'line 5: {READ}')}\n"
    expected = f"{outer}</div></div>\n{of_outer}{inner}</div></div>\n{of_inner}{end}"
    assert html.fragment(marked_report("simulated GPU: L4")) == expected


def test_names_of_ops_are_escaped() -> None:
    gap = Gap(GapKind.UNMODELLED, '"><script>', 1, 0)
    page = html.render(LineRecords([entry(1, 8, 0, gaps=(gap,))], {1: OUTER}).display().report)
    assert "<script" not in page
    assert Markup(page).texts["p"] == [
        'line 8: not modelled: "><script> (1 call, 0.00B of outputs)'
    ]


def test_page_loads_nothing() -> None:
    page = html.render(seed_report("note"))
    assert page.startswith("<!DOCTYPE html>")
    assert '<meta charset="utf-8">' in page
    assert Markup(page).tags.isdisjoint({"script", "link", "img", "iframe"})
    assert "http" not in page
    assert "url(" not in page


def test_no_tables_says_why() -> None:
    report = Report(("hits",), (), ("f <did> not run", "simulated GPU: L4"))
    assert Markup(html.fragment(report)).texts["p"] == [
        "No data collected: f <did> not run",
        "simulated GPU: L4",
    ]
    assert Markup(html.render(report)).texts["title"] == ["Line profile"]


def test_notebook_shows_the_fragment() -> None:
    assert seed_records().display()._repr_html_() == html.fragment(seed_report())
