"""The holders of the memory at a peak, as a notebook shows them."""

from __future__ import annotations

from dataclasses import replace

from peaks import SMALL
from read_page import read

from pytorch_memlab.history.holders import PeakHolders
from pytorch_memlab.history.model import UsedBlock
from pytorch_memlab.render.peak_html import notebook_fragment as fragment


def rows_of(markup):
    return [
        [cell.text for cell in row.all() if cell.tag in ("th", "td")]
        for row in read(markup).all("tr")
    ]


def test_the_lines_that_hold_most_with_their_shares():
    markup = fragment(SMALL)
    assert SMALL._repr_html_() == markup
    paragraphs = [one.text for one in read(markup).all("p")]
    assert paragraphs[0] == (
        "cuda:0: 16.0 MiB in use at the peak, 32.0 MiB reserved (event 5 of 9)"
    )
    assert paragraphs[-1].startswith("By category: ")
    head, first, *_ = rows_of(markup)
    assert head == ["line", "held", "share", "blocks", "code"]
    assert first == ["train.py:3 main", "8.0 MiB", "50.0%", "1", ""]
    assert "min-width:110px;box-shadow:inset 55px 0 #38f6" in markup


def test_more_than_twenty_lines_are_added_up():
    stacks = SMALL.stacks
    frame = stacks[1][0]
    many = [(replace_line(frame, number),) for number in range(1, 26)]
    blocks = tuple(UsedBlock(512 * number, 512, 512, number, 0) for number in range(25))
    peak = replace(SMALL.peak, active=25 * 512, blocks=blocks, failures=())
    rows = rows_of(fragment(PeakHolders(peak, many)))
    assert len(rows) == 22
    assert rows[-1] == ["5 more", "2.5 KiB", "20.0%", "5", ""]


def replace_line(frame, number):
    return frame._replace(line=number)


def test_nothing_at_the_peak_is_one_line():
    peak = replace(SMALL.peak, active=0, blocks=(), failures=())
    markup = fragment(PeakHolders(peak, SMALL.stacks))
    assert next(one.text for one in read(markup).all("p")).startswith("cuda:0: 0 B in use")
    assert list(read(markup).all("table")) == []
