"""``pytorch_memlab.fit`` gives a frame, and a notebook a table with bars."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pandas as pd
import pytest
import torch

import pytorch_memlab
from pytorch_memlab import GPU
from pytorch_memlab.errors import UsageError

MIB = 2**20


class Markup(HTMLParser):
    """The tags and attributes of a page, and the text of its cells."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.cells = set(), set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data):
        if self.cells:
            self.cells[-1] += data


def step():
    """40 MiB."""
    return torch.zeros(40 * MIB, dtype=torch.uint8, device="cuda")


@pytest.fixture(scope="module")
def frame():
    """Of a function on two sizes."""
    return pytorch_memlab.fit(step, gpus=["64MiB", GPU("<b>", "32MiB", (8, 0), 108)])


def test_a_row_for_each_gpu_the_smallest_first(frame):
    assert list(frame.index) == ["<b>", "64MiB"]
    assert frame.to_dict("index")["64MiB"] == {
        "fits": True,
        "verdict": "fits",
        "capacity": 64 * MIB,
        "context": 0,
        "peak": 40 * MIB,
        "active_peak": 40 * MIB,
        "graphs": 0,
        "nccl": 0,
        "nccl_at_least": 0,
        "nccl_at_most": 0,
        "on_device": 40 * MIB,
        "headroom": 24 * MIB,
        "fails_at": "",
        "request": 0,
        "assumed_at": "",
    }
    lacking = frame.loc["<b>"]
    assert (lacking.fits, lacking.headroom, lacking.request) == (False, -8 * MIB, 40 * MIB)
    assert lacking.fails_at == f"{__file__}:{step.__code__.co_firstlineno + 2}"
    assert not torch.cuda.is_available()


def test_selections_are_plain_frames(frame):
    fitting = frame[frame.fits]
    assert type(fitting) is pd.DataFrame
    assert list(fitting.index) == ["64MiB"]
    assert type(frame.sort_values("peak")) is pd.DataFrame


def test_a_program_that_fails_fits_no_gpu_and_the_frame_says_so():
    frame = pytorch_memlab.fit(lambda: 1 / 0, gpus="64MiB")
    assert frame.fits.isna().all()
    assert len(frame[frame.fits]) == 0
    assert frame.report.error.endswith("ZeroDivisionError: division by zero\n")


def fails():
    raise ValueError("my <bug>")


def fails_on_old_gpus():
    if torch.cuda.get_device_capability() < (8, 0):
        raise RuntimeError("\n".join(f"line {number}" for number in range(10)))
    return step()


def test_the_error_of_the_program_is_shown_once_with_its_line():
    frame = pytorch_memlab.fit(fails)
    line = fails.__code__.co_firstlineno + 1
    assert repr(frame) == (
        "fails: run without values\n"
        "no verdict: the program failed on all 39 GPUs\n"
        "\n"
        f'fails at test_frame.py:{line} in fails: raise ValueError("my <bug>")\n'
        "  ValueError: my <bug>"
    )
    fragment = frame._repr_html_()
    assert Markup(fragment).cells == []
    assert fragment.count("ValueError: my &lt;bug&gt;") == 1


def test_an_error_on_some_gpus_names_them():
    frame = pytorch_memlab.fit(fails_on_old_gpus, gpus=["t4", "a100"])
    line = fails_on_old_gpus.__code__.co_firstlineno + 2
    lines = repr(frame).splitlines()
    assert lines[4] == f"t4{'14.76 GiB':>30}{'135.0 MiB':>12}{'failed':>32}"
    failing = f"fails on t4 at test_frame.py:{line} in fails_on_old_gpus: raise RuntimeErr"
    assert (lines[7].startswith(failing), len(lines[7])) == (True, 80)
    assert lines[8:17] == [
        "  RuntimeError: line 0",
        *[f"  line {number}" for number in range(1, 8)],
        "  and 2 more lines",
    ]


def test_a_function_that_runs_with_no_value_shows_its_line():
    def refuses(size):
        raise KeyError(size)

    frame = pytorch_memlab.fit(refuses, gpus="t4", vary={"size": (1, 1)})
    line = refuses.__code__.co_firstlineno + 1
    assert repr(frame).splitlines()[1:] == [
        "the program does not run with size 1: KeyError: 1",
        f"fails at test_frame.py:{line} in refuses: raise KeyError(size)",
    ]
    assert f"test_frame.py:{line} in refuses: raise KeyError(size)" in frame._repr_html_()


def test_a_console_shows_the_table_of_the_command(frame):
    assert repr(frame).splitlines()[:6] == [
        "step: 3 steps without values",
        "fits on 1 of 2 GPUs; the smallest is 64MiB (64.0 MiB)",
        "",
        "GPU                       memory     context        peak        left  fits",
        "<b>                     32.0 MiB         0 B    40.0 MiB    -8.0 MiB  no",
        "64MiB                   64.0 MiB         0 B    40.0 MiB    24.0 MiB  yes",
    ]


def test_a_notebook_shows_bars_that_no_sanitizer_and_no_theme_takes_away(frame):
    fragment = frame._repr_html_()
    markup = Markup(fragment)
    assert markup.tags == {"div", "b", "table", "thead", "tbody", "tr", "th", "td", "p"}
    assert markup.attributes == {"style", "title"}
    assert "var(" not in fragment
    styles = "".join(re.findall('style="([^"]*)"', fragment))
    assert re.findall("(?<!-)color:", styles) == []
    assert re.findall("background:(?!linear)", styles) == []
    rows = [markup.cells[i : i + 7] for i in range(0, len(markup.cells), 7)]
    assert [row[:7] for row in rows] == [
        ["GPU", "memory", "context", "peak", "left", "fits", "share of the memory"],
        ["<b>", "32.0 MiB", "0 B", "40.0 MiB", "-8.0 MiB", "no", "125%"],
        ["64MiB", "64.0 MiB", "0 B", "40.0 MiB", "24.0 MiB", "yes", rows[2][6]],
    ]
    assert rows[2][6].startswith("62%")
    bars = re.findall(r"#2b58 0 ([\d.]+)%|#e448 0 ([\d.]+)%", fragment)
    assert bars == [("", "100.0"), ("62.5", "")]


def test_a_script_and_all_presets(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("import torch\nkept = torch.zeros(2**20, device='cuda')\n")
    frame = pytorch_memlab.fit(path)
    assert len(frame) == len(pytorch_memlab.simulation.hardware.presets.PRESETS)
    assert set(frame.peak) == {20 * MIB}
    assert list(frame.capacity) == sorted(frame.capacity)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"gpus": []}, "gpus is empty: name one GPU at least, or leave it out for all presets"),
        ({"gpus": "rtx409"}, "unknown GPU 'rtx409' \\(did you mean rtx4090"),
        ({"steps": 0}, "steps is an int from 1 on, not 0"),
        ({"num_gpus": True}, "num_gpus is an int from 1 on, not True"),
        ({"others": "much"}, "others is a size such as"),
    ],
)
def test_arguments_that_cannot_be_used(arguments, error):
    with pytest.raises(UsageError, match=error):
        pytorch_memlab.fit(step, **arguments)


def test_something_that_cannot_be_called():
    with pytest.raises(UsageError, match="fit takes a function to call, not 3"):
        pytorch_memlab.fit(3)


def test_a_verdict_on_assumed_sizes_names_the_line_in_its_row():
    def step():
        return torch.rand(2**16, 8, device="cuda").nonzero()

    line = f"{__file__}:{step.__code__.co_firstlineno + 1}"
    found = pytorch_memlab.fit(step, ["24GiB"])
    assert found["assumed_at"].tolist() == [line]
    assert f"yes, sizes assumed at test_frame.py:{line.rpartition(':')[2]}" in found._repr_html_()
    assert "sizes assumed, at most: nonzero" in repr(found)
    given = pytorch_memlab.fit(step, ["24GiB"], assume={"nonzero": 0.001})
    assert given["active_peak"].item() < found["active_peak"].item()
    assert "sizes given by --assume: nonzero" in repr(given)
