"""The Python snippet of the guide prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "before-renting.md"


def test_the_function_of_the_guide_fits_where_its_memory_does(capsys):
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = (one for one in blocks if "def step()" in one)
    exec(block, {"__name__": "guide"})
    lines = capsys.readouterr().out.splitlines()
    # Weight, gradient and two states of 64 MiB, and what the linear layer and AdamW take.
    assert [line.split()[0] for line in lines] == ["gpu", "512MiB", "t4", "a100", "Name:"]
    assert all(256 * 2**20 < int(line.split()[1]) < 512 * 2**20 for line in lines[1:4])
