"""``profile.diff(other)``: the differences between two profiles, as tables, text and data."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
import torch

from pytorch_memlab import LineProfiler, load, simulate
from pytorch_memlab.errors import UsageError

MIB = 2**20


def work(size):
    kept = torch.zeros(size * MIB, dtype=torch.uint8, device="cuda")
    return kept  # noqa: RET504 - two lines


class Rows(HTMLParser):
    """The cells of all rows."""

    def __init__(self, text):
        super().__init__()
        self.rows, self._is_cell = [], False
        self.feed(text)

    def handle_starttag(self, tag, _attributes):
        self._is_cell = tag in ("td", "th")
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, _tag):
        self._is_cell = False

    def handle_data(self, data):
        if self._is_cell:
            self.rows[-1].append(data)


def profile(size):
    with simulate("1GiB"), LineProfiler(work, history=True) as profiler:
        work(size)
    return profiler


@pytest.fixture(scope="module")
def difference():
    return profile(20).diff(profile(60))


WHERE = f"test_profile_difference.py:{work.__code__.co_firstlineno + 1}"


def test_text_is_that_of_the_command(difference):
    lines = str(difference).splitlines()
    assert [line.partition(":")[0] for line in lines[:2]] == ["before", "after"]
    assert lines[4:6] == [
        "  peak active        20.0 MiB    60.0 MiB    +40.0 MiB  +200.0%",
        "  peak allocated     20.0 MiB    60.0 MiB    +40.0 MiB  +200.0%",
    ]
    assert lines[9] == f"  +40.0 MiB {WHERE}  work"
    assert all(len(line) <= 80 for line in lines[2:])


def test_a_notebook_shows_tables(difference):
    rows = Rows(difference._repr_html_()).rows
    code = 'kept = torch.zeros(size * MIB, dtype=torch.uint8, device="cuda")'
    assert rows[1] == ["cuda:0 active", "20.0 MiB", "60.0 MiB", "+40.0 MiB"]
    assert rows[4] == ["line", "before", "after", "change", "code"]
    assert rows[5] == [f"{WHERE}  work", "20.0 MiB", "60.0 MiB", "+40.0 MiB", code]
    assert rows[-2:] == [
        ["line", "before", "after", "change"],
        [WHERE, "20.0 MiB", "60.0 MiB", "+40.0 MiB"],
    ]


def test_data_and_the_line_of_a_terminal(difference):
    assert repr(difference) == "<ProfileDifference: cuda:0 peak +40.0 MiB, 2 lines changed>"
    first = difference.to_dataframe().iloc[0].to_dict()
    assert (first["function"], first["device"]) == ("work", "cuda:0")
    assert (first["kept_before"], first["kept_after"]) == (20 * MIB, 60 * MIB)


def test_a_loaded_profile_is_compared_too(tmp_path):
    first = profile(20)
    first.save(tmp_path / "first.json")
    difference = load(tmp_path / "first.json").diff(first)
    assert repr(difference) == "<ProfileDifference: cuda:0 peak 0 B, 0 lines changed>"
    assert Rows(difference._repr_html_()).rows[1][1:] == ["20.0 MiB", "20.0 MiB", "0 B"]
    with pytest.raises(UsageError, match="diff takes a profiler or a loaded profile, not 'x'"):
        first.diff("x")
