"""``verify``: a program on a GPU beside the same program simulated."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytorch_memlab.cli.main import main
from pytorch_memlab.simulation import replay

PROGRAM = """\
import torch
from torch import nn

def train():
    model = nn.Linear(256, {width}).cuda()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, lr=0.1)
    torch.cuda.memory._record_memory_history()
    for step in range(3):
        x = torch.randn(64, 256, device="cuda")
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.memory._dump_snapshot("snapshot.pickle")

train()
"""


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The snapshot that the program writes on an A100."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "train.py").write_text(PROGRAM.format(width=512))
    command = [sys.executable, "-m", "pytorch_memlab", "run", "--no-try", "-o", "out.txt"]
    command += ["--gpu", "a100", "train.py"]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)
    return (folder / "snapshot.pickle").read_bytes()


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: bytes) -> Path:
    """A folder with a program and the snapshot that it wrote."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM.format(width=512))
    Path("snapshot.pickle").write_bytes(snapshot)
    return tmp_path


def test_a_recording_of_the_same_program_is_equal(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path("snapshot.pickle").read_bytes()
    assert main(["verify", "--recorded", "snapshot.pickle", "--gpu", "a100", "train.py"]) == 0
    assert capsys.readouterr().out == (
        "snapshot.pickle, beside the program simulated without values on NVIDIA\n"
        "  A100-SXM4-80GB\n"
        "\n"
        "cuda:0: equal: all 45 allocations and frees, in order\n"
        "\n"
        "                      recorded   simulated  differs by\n"
        "  peak active         17.9 MiB    17.9 MiB           0\n"
        "  peak reserved       22.0 MiB    22.0 MiB           0\n"
        "the recording begins after 2 allocations and frees of the program and ends\n"
        "  before 5 more\n"
    )
    assert Path("snapshot.pickle").read_bytes() == before


def test_another_program_differs_where_it_does(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("train.py").write_text(PROGRAM.format(width=640))
    assert main(["verify", "--recorded", "snapshot.pickle", "--gpu", "a100", "train.py"]) == 1
    out = capsys.readouterr().out
    assert "cuda:0: equal" not in out
    assert (
        "  train.py:10, after 1 recorded request\n"
        "    on the GPU   allocates 131,072 B\n"
        "    simulated    allocates 163,840 B\n"
        "    this line is marked ~\n"
    ) in out
    assert out.endswith(
        "bytes allocated by the lines that differ most\n"
        "  train.py:10                     18.5 MiB    19.1 MiB  +577.5 KiB\n"
        "  train.py:11                    514.0 KiB   642.5 KiB  +128.5 KiB\n"
    )


def test_a_run_on_this_machine_is_compared_whole_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The children simulate both runs where this machine has no GPU."""
    import torch

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    Path("secret").mkdir()
    Path("secret/train.py").write_text(PROGRAM.format(width=512))
    command = ["verify", "--steps", "2", "-o", "out.json.gz", "secret/train.py", "--token=abc"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "cuda:0: equal: all 31 allocations and frees, in order\n" in out
    content = gzip.decompress(Path("out.json.gz").read_bytes())
    for private in (b"secret", b"abc", str(tmp_path).encode()):
        assert private not in content
    trace = json.loads(content)
    assert trace["versions"]["torch"] == torch.__version__
    assert trace["versions"]["gpu"] == "NVIDIA H100 80GB HBM3"
    [verified] = trace["verified"]
    assert (verified["equal"], verified["total"]) == (31, 31)
    result = replay(trace)
    assert result.mismatches == []
    assert result.final_matches


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train.py"], "this machine has no CUDA GPU to run the program on: --recorded FILE"),
        (["--recorded", "snapshot.pickle", "nothing.py"], "cannot open the script nothing.py"),
        (["--recorded", "nothing.pickle", "train.py"], "nothing.pickle"),
        (["--recorded", "train.py", "train.py"], "train.py"),
        (["--recorded", "snapshot.pickle", "-o", "no/out.json.gz", "train.py"], "no/out.json.gz"),
        (["--recorded", "snapshot.pickle", "--gpu", "h1000", "train.py"], "unknown GPU 'h1000'"),
        (
            ["--recorded", "snapshot.pickle", "-o", "out.txt", "train.py"],
            "end it in .json.gz",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(
    recorded: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_program_that_fails_before_it_uses_a_gpu(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("train.py").write_text("import nothing_of_this_name\n")
    assert main(["verify", "--recorded", "snapshot.pickle", "--gpu", "a100", "train.py"]) == 2
    assert "No module named 'nothing_of_this_name'" in capsys.readouterr().err
