"""HTML of a report, read back with the standard library's parser."""

import re
from html.parser import HTMLParser

from sample_reports import CUDA0, KIB, OUTER, entry, marked_report, seed_records, seed_report

from pytorch_memlab.line_profiler.line_records import LineRecords
from pytorch_memlab.records import FunctionInfo, FunctionTable, Gap, GapKind, Report
from pytorch_memlab.render import html


class Cells(HTMLParser):
    """Collects the texts of each kind of element."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self.tags.add(tag)
        self.open.append(tag)
        self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]][-1] += data


def parsed(markup: str) -> Cells:
    cells = Cells()
    cells.feed(markup)
    return cells


def test_seed_tables() -> None:
    cells = parsed(html.fragment(seed_report("simulated GPU: L4")))
    assert cells.texts["h3"] == ["outer", "inner"]
    assert cells.texts["p"] == ["simulated GPU: L4"]
    assert cells.texts["th"] == 2 * [
        *("active_bytes", "reserved_bytes", "line", "code"),
        *("all", "all", "", ""),
        *("peak", "peak", "", ""),
    ]
    assert cells.texts["td"] == [
        *("0.00B", "0.00B", "7", "def outer():"),
        *("40.00K", "2.00M", "8", "    linear = torch.nn.Linear(100, 100).cuda()"),
        *("80.00K", "2.00M", "9", "    linear2 = torch.nn.Linear(100, 100).cuda()"),
        *("120.00K", "2.00M", "10", "    inner()"),
        *("80.00K", "2.00M", "4", "def inner():"),
        *("120.00K", "2.00M", "5", "    torch.nn.Linear(100, 100).cuda()"),
    ]


def test_bars_are_shares_of_the_largest_value_of_all_tables() -> None:
    report = seed_records().display(["outer", "inner"], "active_bytes.all.peak").report
    small = Report(report.columns, report.tables[1:], ())
    for percent in ("33.3%", "66.7%", "100.0%"):
        assert f"#9dbff0 {percent}, transparent {percent}" in html.fragment(report)
    assert "#9dbff0 33.3%" not in html.fragment(small)


def test_each_column_has_its_colour() -> None:
    markup = html.fragment(seed_report())
    assert "#9dbff0" in markup
    assert "#f7bd90" in markup


def test_negative_delta_has_a_bar_left_of_zero() -> None:
    entries = [entry(1, 7, 0, delta=-40 * KIB), entry(1, 8, 0, delta=120 * KIB)]
    markup = html.fragment(LineRecords(entries, {1: OUTER}).display(columns="delta").report)
    assert "linear-gradient(90deg, #d0d7de 25.0%, transparent 25.0%)" in markup
    assert "transparent 25.0%, #9dbff0 25.0%, #9dbff0 100.0%" in markup
    assert parsed(markup).texts["td"][:8:3] == ["-40.00K", "120.00K", ""]


def test_counts_times_and_gaps() -> None:
    entries = [entry(1, 8, 0, hits=12, time=0.0015)]
    columns = ["hits", "time", "requested_bytes.all.peak"]
    cells = parsed(html.fragment(LineRecords(entries, {1: OUTER}).display(None, columns).report))
    assert cells.texts["td"][:4] == ["", "", "", "7"]
    assert cells.texts["td"][5:9] == ["12", "1.500ms", "", "8"]


def test_text_from_outside_is_escaped() -> None:
    attack = "<script>alert('&amp;')</script>"
    function = FunctionInfo(attack, "f.py", 1, (f'x = "{attack}"',))
    table = FunctionTable(function, CUDA0, {1: (1,)})
    page = html.render(Report(("hits",), (table,), (attack,)))
    assert "<script" not in page
    cells = parsed(page)
    assert cells.texts["td"] == ["1", "1", f'x = "{attack}"']
    assert cells.texts["h3"] == cells.texts["p"] == [attack]
    assert cells.texts["title"] == [f"Line profile of {attack}"]


MARK = (
    '<span style="display:inline-block;width:0;text-align:left;font-weight:600;color:#9a3b00;'
    'cursor:help" title="{}">{}</span>'
)
NOTE = '\n<p style="color:#57606a;margin:4px 0 0">{}</p>'
MEAN = "estimated: mean (1 call, 3.00M taken besides its results)"
QR = "not modelled: linalg_qr (2 calls, 1.00K of outputs)"
READ = (
    "read values that shapes alone do not have: Tensor.item (2 times, taken as zero): what follows "
    "rests on that"
)


def without_ids(markup: str) -> str:
    return re.sub("T_[0-9a-f]{10}_", "T_", markup)


def test_marks_and_notes_are_all_that_a_marked_table_has_more() -> None:
    expected = without_ids(html.fragment(seed_report("simulated GPU: L4")))
    outer, rest = expected.split("</table>", 1)
    inner, end = rest.split("</table>")
    outer = outer.replace(">8</td>", f">8{MARK.format(MEAN, '~')}</td>")
    title = f"{QR}\n{MEAN}\n{READ}"
    outer = outer.replace(">10</td>", f">10{MARK.format(title, '?')}</td>")
    inner = inner.replace(">5</td>", f">5{MARK.format(READ, '?')}</td>")
    notes = [f"line 8: {MEAN}", *(f"line 10: {note}" for note in (QR, MEAN, READ))]
    expected = (
        f"{outer}</table>\n{''.join(NOTE.format(note) for note in notes)}"
        f"{inner.removeprefix(chr(10))}</table>\n{NOTE.format(f'line 5: {READ}')}"
        f"{end.removeprefix(chr(10))}"
    )
    assert without_ids(html.fragment(marked_report("simulated GPU: L4"))) == expected


def test_names_of_ops_are_escaped() -> None:
    gap = Gap(GapKind.UNMODELLED, '"><script>', 1, 0)
    page = html.render(LineRecords([entry(1, 8, 0, gaps=(gap,))], {1: OUTER}).display().report)
    assert "<script" not in page
    assert parsed(page).texts["p"] == [
        'line 8: not modelled: "><script> (1 call, 0.00B of outputs)'
    ]


def test_page_loads_nothing() -> None:
    page = html.render(seed_report("note"))
    assert page.startswith("<!DOCTYPE html>")
    assert '<meta charset="utf-8">' in page
    assert parsed(page).tags.isdisjoint({"script", "link", "img", "iframe"})
    assert "http" not in page
    assert "url(" not in page


def test_equal_reports_give_equal_html_and_others_share_no_id() -> None:
    first = html.fragment(seed_report())
    assert first == html.fragment(seed_report())
    other = html.fragment(seed_report("note"))
    ids = [{part.split('"')[0] for part in markup.split(' id="')[1:]} for markup in (first, other)]
    assert len(ids[0]) > 20
    assert ids[0].isdisjoint(ids[1])


def test_no_tables_says_why() -> None:
    report = Report(("hits",), (), ("f <did> not run", "simulated GPU: L4"))
    assert parsed(html.fragment(report)).texts["p"] == [
        "No data collected: f <did> not run",
        "simulated GPU: L4",
    ]
    assert parsed(html.render(report)).texts["title"] == ["Line profile"]


def test_notebook_shows_the_fragment() -> None:
    assert seed_records().display()._repr_html_() == html.fragment(seed_report())
