"""``pytorch_memlab.fit(step, vary=...)``: the frame, and what it refuses."""

from __future__ import annotations

import re

import pandas as pd
import pytest
import torch

from pytorch_memlab import fit
from pytorch_memlab.errors import UsageError

MIB = 2**20


def step(batch_size, length=1):
    torch.zeros(40 + 2 * batch_size * length, MIB, dtype=torch.uint8, device="cuda")


def test_a_row_for_each_gpu_and_length():
    vary = {"batch_size": (1, 8), "length": [1, 2]}

    found = fit(step, ["40MiB", "50MiB"], vary=vary)

    assert list(found.columns) == [
        *("length", "batch_size", "peak", "headroom", "capacity", "context", "next", "next_needs"),
        *("base", "per_item"),
    ]
    none = pd.NA
    expected = [
        [1, none, none, none, 40 * MIB, 0, 1, 42 * MIB, 40 * MIB, 2 * MIB],
        [1, 5, 50 * MIB, 0, 50 * MIB, 0, 6, 52 * MIB, 40 * MIB, 2 * MIB],
        [2, none, none, none, 40 * MIB, 0, 1, 44 * MIB, 40 * MIB, 4 * MIB],
        [2, 2, 48 * MIB, 2 * MIB, 50 * MIB, 0, 3, 52 * MIB, 40 * MIB, 4 * MIB],
    ]
    index = pd.Index(["40MiB", "50MiB"] * 2, name="gpu", dtype=object)
    wanted = pd.DataFrame(expected, index, found.columns, dtype=object)
    pd.testing.assert_frame_equal(pd.DataFrame(found.astype(object)), wanted)
    assert repr(found).startswith("step: ")
    assert "largest batch_size by length" in repr(found)
    rows = re.findall(r"<tr>(.*?)</tr>", found._repr_html_())
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]
    heads = ["GPU", "memory", "largest", "peak", "left", "next", "share of the memory"]
    assert cells == [
        heads,
        ["40MiB", "40.0 MiB", "none", "", "", "1: 42.0 MiB", ""],
        ["50MiB", "50.0 MiB", "5", "50.0 MiB", "0 B", "6: 52.0 MiB", "100%"],
        heads,
        ["40MiB", "40.0 MiB", "none", "", "", "1: 44.0 MiB", ""],
        ["50MiB", "50.0 MiB", "2", "48.0 MiB", "2.0 MiB", "3: 52.0 MiB", "96%"],
    ]
    assert "#2b58 0 96.0%" in rows[-1], "the bar of what fits"
    assert "<div>largest batch_size that fits, with length 2</div>" in found._repr_html_()
    assert "memory = 40.0 MiB + 4.0 MiB x batch_size" in found._repr_html_()
    assert type(found[found.batch_size > 0]) is pd.DataFrame


def test_a_name_that_the_function_does_not_have():
    found = fit(step, "50MiB", vary={"batches": (1, 8)})

    assert found.report.problem == "TypeError: step() got an unexpected keyword argument 'batches'"
    assert len(found.report.trials) <= 2


def test_a_script(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(
        "import sys, torch\nb = int(sys.argv[1].partition('=')[2])\n"
        "x = torch.zeros(2 * b, 2**20, dtype=torch.uint8, device='cuda')\n"
    )

    found = fit(str(path), "50MiB", vary={"--batch": range(5, 50, 5)})

    assert found["--batch"].tolist() == [25]
    assert found["next"].tolist() == [30]


def test_what_it_refuses():
    with pytest.raises(UsageError, match="dtype has no numbers, of which the largest"):
        fit(step, "50MiB", vary={"dtype": ["bf16", "fp32"]})
    with pytest.raises(UsageError, match="vary is a dict such as"):
        fit(step, "50MiB", vary=(1, 512))
