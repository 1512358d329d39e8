"""Every block of Python in the README and the docs runs, cell by cell, on a simulated GPU."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from pytorch_memlab import simulate

ROOT = Path(__file__).parents[2]
SETUP = """
import signal
import torch
from pytorch_memlab import Courtesy, GPU, MemReporter, simulate

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
    def forward(self, x):
        return self.linear(x).square().mean()

def train_step(model, batch):
    model(batch).backward()

def train(model=None):
    model = model or Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        step(torch.ones(4, 8, device="cuda"), model)
        optimizer.step()

def step(batch, model=None):
    train_step(model or globals()["model"], batch)

def wait_for_my_turn():
    assert not torch.cuda.memory_allocated()
"""
ON_GPU = """
model = Net().cuda()
loader = [torch.ones(4, 8, device="cuda") for _ in range(4)]
batch = loader[0]
"""
FAILS_ON_PURPOSE = {"attention(q, k, v).sum().backward()": torch.OutOfMemoryError}
"""Last lines of blocks that show an error."""


WITH_A_TEST_OF_THEIR_OWN = {"pytest.md", "training-frameworks.md"}
"""Documents whose blocks need pytest or other libraries: ``test_plugin_guide.py`` and
``test_training_frameworks_guide.py`` run them."""


def snippets(path):
    found = re.findall(r"^```python\n(.*?)^```$", path.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [block for block in found if block.strip()]


DOCUMENTS = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if snippets(path) and path.name not in WITH_A_TEST_OF_THEIR_OWN
]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_block_runs(path, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = snippets(path)
    simulates = any(re.search(r"\bwith simulate\(|^%simulate", cell, re.M) for cell in cells)
    with nullcontext() if simulates else simulate("2GiB", compute=False):
        run(SETUP).raise_error()
        prepared = False
        for cell in cells:
            if torch.cuda.is_available() and not prepared:
                run(ON_GPU).raise_error()
                prepared = True
            expected = FAILS_ON_PURPOSE.get(cell.strip().splitlines()[-1])
            if expected is None:
                run(cell).raise_error()
            else:
                assert isinstance(run(cell).error_in_exec, expected)
        for name in re.findall(r"^def (test_\w+)", "".join(cells), re.MULTILINE):
            run(f"{name}()").raise_error()
    if simulates and "%simulate" in "".join(cells):
        run("%simulate off").raise_error()


def test_there_are_blocks():
    assert sum(len(snippets(path)) for path in DOCUMENTS) > 15
