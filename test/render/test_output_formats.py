"""The one list of output formats: what each command has, and one more by a file."""

from __future__ import annotations

import sys

import pytest
from peaks import SMALL

from pytorch_memlab.cli.main import main
from pytorch_memlab.render import output_format, outputs
from pytorch_memlab.render.outputs import output_formats

ROWS_FILE = '''
from pytorch_memlab.render.output_format import OutputFormat, PeakResults


class Sizes(OutputFormat[PeakResults]):
    """The size of each line."""

    shows = PeakResults
    endings = (".sizes", ".bytes")
    order = 6
    has_rows = {has_rows}

    def render(self, results: PeakResults) -> str:
        rows = [row.size for peak in results.peaks for row in peak.by_line()]
        return f"{{self.ending}} {{results.by}} {{rows[: results.top]}}"
'''


@pytest.mark.parametrize(
    ("kind", "endings"),
    [
        ("RunResults", [".txt", ".html", ".json"]),
        ("PeakResults", [".html", ".speedscope.json", ".collapsed.txt", ".csv", ".txt"]),
        ("TimelineResults", [".html", ".svg", ".png"]),
        ("ComparisonResults", [".txt", ".html"]),
        ("JobResults", [".txt", ".html", ".json"]),
        ("SearchResults", [".svg", ".png"]),
        ("VerifiedResults", [".json.gz"]),
    ],
)
def test_each_kind_of_results_has_its_formats_in_order(kind, endings):
    formats = output_formats(getattr(output_format, kind))
    assert [*formats] == endings
    assert [one.ending for one in formats.values()] == endings


@pytest.fixture
def one_more(tmp_path, monkeypatch):
    """Adds a format of peaks by a file, and makes ``peak`` show small ones."""

    def add(*, has_rows):
        folder = tmp_path / "more"
        folder.mkdir()
        (folder / "sizes_file.py").write_text(ROWS_FILE.format(has_rows=has_rows))
        monkeypatch.setattr(outputs, "__path__", [*outputs.__path__, str(folder)])

    monkeypatch.setattr("pytorch_memlab.cli.commands.peak._peaks_in", lambda _options: [SMALL] * 2)
    monkeypatch.chdir(tmp_path)
    yield add
    sys.modules.pop(f"{outputs.__name__}.sizes_file", None)
    vars(outputs).pop("sizes_file", None)


def test_a_file_is_a_format_of_peak_with_the_rows_that_are_asked_for(one_more, tmp_path, capsys):
    one_more(has_rows=True)
    assert main(["peak", "-o", "a.SIZES", "-o", "b.bytes", "--top", "1", "snapshot.pickle"]) == 0
    largest = SMALL.by_line()[0].size
    assert (tmp_path / "a.SIZES").read_text() == f".sizes line [{largest}]"
    assert (tmp_path / "b.bytes").read_text() == f".bytes line [{largest}]"
    assert main(["peak", "-o", "a.html", "--top", "1", "snapshot.pickle"]) == 2
    assert "are for .csv and .txt and .sizes and .bytes, not for" in capsys.readouterr().err
    assert main(["peak", "-o", "a.size", "snapshot.pickle"]) == 2
    assert capsys.readouterr().err.endswith(
        "end it in .html, .speedscope.json, .collapsed.txt, .csv, .txt, .sizes, .bytes\n"
    )
    assert main(["timeline", "-o", "a.sizes", "snapshot.pickle"]) == 2
    assert "end it in .html, .svg, .png\n" in capsys.readouterr().err


def test_a_format_without_rows_refuses_to_choose_them(one_more, tmp_path, capsys):
    one_more(has_rows=False)
    assert main(["peak", "-o", "a.sizes", "--top", "1", "snapshot.pickle"]) == 2
    assert "--by and --top are for .csv and .txt, not for a.sizes" in capsys.readouterr().err
    assert not (tmp_path / "a.sizes").exists()
