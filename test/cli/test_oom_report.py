"""``run`` and a program that runs out of memory: the report is the last thing on the screen."""

from __future__ import annotations

import json
import linecache

import pytest
import torch
from support.command_with_time import WITH_TIME
from support.python_process import run_python
from support.saved_tensors import knows_saved_tensors

from pytorch_memlab.cli.main import main

PROGRAM = """\
import torch


def attention(q, k, v):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    weights = scores.softmax(dim=-1)
    return weights @ v


def main():
    q, k, v = (torch.randn(8, 4096, 64, device="cuda", requires_grad=True) for _ in range(3))
    attention(q, k, v).sum().backward()


main()
"""

REPORT = """\
Out of memory on cuda:0 at train.py:12, in main
    attention(q, k, v).sum().backward()
  asked for a segment of 512.0 MiB in SoftmaxBackward0 of train.py:6
  in use 1.05 GiB, cached 525.7 MiB (largest block 503.9 MiB), free 450.0 MiB
  of 2.00 GiB; CUDA context 0 B, other processes 0 B
  held at the error by 512.0 MiB saved for backward, 512.0 MiB temporaries,
    24.0 MiB other tensors, 16.2 MiB workspaces, 8.0 MiB gradients
   528.1 MiB  train.py:12  attention(q, k, v).sum().backward()
   512.0 MiB  train.py:6   weights = scores.softmax(dim=-1)
    24.0 MiB  train.py:11  q, k, v = (torch.randn(8, 4096, 64, devic…  (q, k, v)
     8.1 MiB  train.py:5   scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
what helps, the most likely cause first
  1. attention (line 6) stores 4096 x 4096 matrices: 512.0 MiB
       # train.py in place of lines 5 to 7:
       return torch.nn.functional.scaled_dot_product_attention(q.unsqueeze(1),
           k.unsqueeze(1), v.unsqueeze(1)).squeeze(1)
       tried: peak 2.05 GiB -> 72.3 MiB, runs to its end
       same formula, other rounding
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
    linecache.checkcache()
    return tmp_path


@knows_saved_tensors
def test_the_report_follows_the_traceback_and_is_the_last_thing_on_the_screen(program):
    command = ["-c", WITH_TIME, "run", "--gpu", "2GiB", "--dry-run"]
    command += ["--oom-report", "report.txt", "train.py"]
    done = run_python(command, cwd=program)

    assert done.returncode == 1
    traceback, _, report = done.stderr.partition("\n\n")
    assert "Traceback (most recent call last):" in traceback
    assert traceback.count("torch.OutOfMemoryError") == 1
    assert report == REPORT
    assert (program / "report.txt").read_text() == REPORT
    # The table marks the row of each function that failed, and shows what was asked for.
    marked = [line for line in done.stdout.splitlines() if "!" in line]
    failed = "out of memory: asked for 512.0 MiB"
    assert [line.split("! ")[1].replace("  <-", "  # <-").split("  # ") for line in marked] == [
        ["    attention(q, k, v).sum().backward()", failed, "<- peak"],
        ["main()", failed],
    ]


def run_in_process(*arguments: str) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        main(["run", "--gpu", "2GiB", "--dry-run", "--no-try", *arguments])


def test_a_file_of_data(program, capsys):
    run_in_process("--oom-report", "report.json", "train.py")

    data = json.loads((program / "report.json").read_text())
    assert data["place"]["line"] == 12
    assert (data["requested"], data["capacity"]) == (2**29, 2**31)
    assert data["in_use"] == sum(data["categories"].values())
    assert data["in_use"] == sum(line["bytes"] for line in data["lines"])
    assert data["remedies"][0]["cause"] == "attention written out"
    assert capsys.readouterr().err.count("Out of memory on cuda:0") == 0  # it was not shown


def test_a_page_marks_the_failing_row(program):
    run_in_process("-o", "profile.html", "train.py")

    page = (program / "profile.html").read_text()
    assert page.count("# out of memory: asked for 512.0 MiB</span>") == 2
    assert 'title="out of memory: asked for 512.0 MiB">!</span>' in page


def test_a_handled_error_has_no_report_no_file_and_no_mark(program, capsys):
    text = PROGRAM.replace(
        "\nmain()\n", "\ntry:\n    main()\nexcept torch.OutOfMemoryError:\n    pass\n"
    )
    (program / "train.py").write_text(text)

    main(["run", "--gpu", "2GiB", "--dry-run", "--oom-report", "report.txt", "train.py"])

    shown = capsys.readouterr()
    assert "Out of memory" not in shown.err
    said = " ".join(shown.out.split())
    assert "of 2.00 GiB: ran out of memory, which the program handled ##" in said
    assert "# out of memory" not in shown.out
    assert not (program / "report.txt").exists()


def test_an_exit_after_a_handled_error_has_no_report(program, capsys):
    text = PROGRAM.replace(
        "\nmain()\n",
        "\ntry:\n    main()\nexcept torch.OutOfMemoryError:\n    raise SystemExit(3)\n",
    )
    (program / "train.py").write_text(text)

    with pytest.raises(SystemExit):
        main(["run", "--gpu", "2GiB", "--dry-run", "--oom-report", "report.txt", "train.py"])

    assert "Out of memory" not in capsys.readouterr().err
    assert not (program / "report.txt").exists()


def test_a_file_that_cannot_be_written_is_told_before_the_program_runs(program, capsys):
    assert main(["run", "--gpu", "2GiB", "--oom-report", "none/report.txt", "train.py"]) == 2
    assert capsys.readouterr().err.startswith(
        "pytorch-memlab run: error: cannot write none/report.txt: no such folder"
    )


@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_what_the_error_frees_on_its_way_up_keeps_its_category(tmp_path, monkeypatch):
    """The list of a comprehension has no name, and is gone when the report is made."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x.exp().sin().sum()\n"
        "net, x = Net(), torch.ones(1 << 20, device='cuda', requires_grad=True)\n"
        "kept = [net(x) for _ in range(20)]\n"
    )
    linecache.checkcache()
    with pytest.raises(torch.OutOfMemoryError):
        main(["run", "--gpu", "64MiB", "--no-try", "--oom-report", "report.txt", "train.py"])
    text = " ".join((tmp_path / "report.txt").read_text().split())
    # The input of sin() for each of 13 sums, x itself, and what the failing call has.
    assert (
        "held at the error by 52.0 MiB saved for backward, 4.0 MiB other tensors, 4.0 MiB"
        " temporaries"
    ) in text
