"""``run --report``: the memory by category at the end of a run and at its peak."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from support.saved_tensors import knows_saved_tensors

from pytorch_memlab.cli.main import main
from pytorch_memlab.errors import HistoryError
from pytorch_memlab.history.recorder import Recording

TRAINING = """\
import torch

torch.backends.cuda.preferred_blas_library("cublas")
model = torch.nn.Embedding(1024, 64).cuda()
model.register_buffer("scale", torch.ones(256, device="cuda"))
optimizer = torch.optim.Adam(model.parameters())
batch = torch.zeros(100, dtype=torch.long, device="cuda")
loss = (model(batch) * 2).exp().sum()
loss.backward()
optimizer.step()
kept = model(batch).exp()
"""

ROWS = (
    ("", "at the end", "at the peak"),
    ("parameters", "256.0 KiB", "256.0 KiB"),
    ("gradients", "256.0 KiB", "256.0 KiB"),
    ("optimizer state", "512.0 KiB", "512.0 KiB"),
    ("buffers", "1.0 KiB", "1.0 KiB"),
    ("activations saved for backward", "25.0 KiB", ""),
    ("inputs and other tensors", "804 B", "1.5 KiB"),
    ("temporaries", "", "256.0 KiB"),
    ("rounding", "732 B", ""),
    ("kernels' workspaces", "0 B", ""),
    ("unknown", "0 B", ""),
    ("= allocated", "1.0 MiB", "1.3 MiB"),
    ("cached", "996.5 KiB", "765.5 KiB"),
    ("= reserved", "2.0 MiB", "2.0 MiB"),
)
TABLE = "\n".join(
    [
        "## memory by category: cuda:0",
        "",
        *(f"{name:54}{end:>13}{peak:>13}" for name, end, peak in ROWS),
        "at the peak: whole blocks, so that rounding is in each category\n",
    ]
)
PEAK = 5 * 256 * 2**10 + 2**10 + 3 * 512
"""Weights, gradients, both moments, a temporary of the optimizer; the scale; indices and loss."""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(text):
    Path("script.py").write_text(dedent(text))
    return "script.py"


def section(text):
    found = text[text.index("## memory by category") :]
    return re.split(r"\n(?:simulated GPU|kept and freed)", found)[0]


@knows_saved_tensors
@pytest.mark.parametrize("options", [[], ["--dry-run"]])
@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_every_byte_that_is_allocated_has_a_category(capsys, options):
    tell = 'print("peak", torch.cuda.memory_stats()["active_bytes.all.peak"])\n'
    main(["run", "--report", *options, write(TRAINING + tell)])

    said = capsys.readouterr().out
    assert said.startswith(f"peak {PEAK}\n")
    assert section(said) == TABLE


def test_on_a_real_gpu_the_peak_is_not_known(capsys, monkeypatch):
    def nothing(self, device=None):
        raise HistoryError("nothing was recorded")

    monkeypatch.setattr(Recording, "peak_holders", nothing)
    main(["run", "--report", write(TRAINING)])

    said = section(capsys.readouterr().out).splitlines()
    assert said[2].split() == ["at", "the", "end"]
    assert f"{'= allocated':67}{'1.0 MiB':>13}" in said
    assert said[-1] == "at the peak: not known on a real GPU"


def test_lines_have_at_most_80_columns(capsys):
    main(["run", "--report", write(TRAINING)])

    assert {len(line) for line in section(capsys.readouterr().out).splitlines()[2:-1]} == {80}


def test_each_gpu_in_use_has_a_table(capsys):
    program = 'import torch\nx = [torch.ones(256, device=f"cuda:{n}") for n in (0, 2)]\n'
    main(["run", "--report", "--gpu", "24GiB", "--num-gpus", "3", write(program)])
    said = capsys.readouterr().out

    assert [line for line in said.splitlines() if line.startswith("## memory")] == [
        "## memory by category: cuda:0",
        "## memory by category: cuda:2",
    ]


def test_without_cuda_memory_there_is_no_table(capsys):
    main(["run", "--report", write("import torch\nx = torch.ones(3)\n")])

    assert "memory by category" not in capsys.readouterr().out


def test_a_program_out_of_memory_is_reported_as_it_was_then(capsys):
    program = """\
    import torch

    def main():
        kept = torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
        more = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")

    main()
    """
    with pytest.raises(torch.OutOfMemoryError):
        main(["run", "--report", "--gpu", "64MiB", write(program)])
    said = section(capsys.readouterr().out).splitlines()

    assert f"{'inputs and other tensors':54}{'40.0 MiB':>13}{'40.0 MiB':>13}" in said
    assert f"{'= reserved':54}{'40.0 MiB':>13}{'40.0 MiB':>13}" in said


@knows_saved_tensors
@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_files_have_it_too():
    main(["run", "--report", "-o", "out.txt", "-o", "out.html", write(TRAINING)])

    assert section(Path("out.txt").read_text()) == TABLE
    assert "= allocated" in Path("out.html").read_text()
