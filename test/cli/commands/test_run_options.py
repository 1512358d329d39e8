"""Options of ``pytorch-memlab run``, and what it says before and after a program."""

from __future__ import annotations

import json
import os

import pytest
import torch
from support.run_command import FORWARD, NOTICE, SCRIPT, UNUSED, command

from pytorch_memlab.cli.main import main


def test_columns(write, capsys):
    main(["run", "-c", "hits,delta", "-c", "allocated_bytes.all.peak", "-f", "make", write(SCRIPT)])

    head = capsys.readouterr().out.splitlines()[3:6]
    assert [line.split() for line in head] == [
        ["hits", "delta", "allocated_bytes", "line", "code"],
        ["all"],
        ["peak"],
    ]


@pytest.mark.parametrize(
    ("gpu", "total"), [("24GiB", 24 << 30), ("512MiB", 512 << 20), ("t4", None)]
)
def test_gpu(gpu, total, write, capsys):
    text = "import torch\nprint(torch.cuda.mem_get_info()[1], torch.cuda.get_device_name())\n"

    main(["run", "--gpu", gpu, write(text)])

    shown = capsys.readouterr().out.splitlines()[0]
    assert shown.startswith(f"{total} ") if total else shown.endswith("Tesla T4")


def test_count(write, capsys):
    main(["run", "--count", "3", write("import torch\nprint(torch.cuda.device_count())\n")])

    assert capsys.readouterr().out.startswith("3\n")


@pytest.mark.parametrize("ending", ["txt", "html", "json"])
@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_output_file(ending, write, capsys, tmp_path):
    main(["run", "-f", "Net.forward", "-o", f"out.{ending}", write(SCRIPT)])

    out, err = capsys.readouterr()
    told = f"{NOTICE}memory profile written to out.{ending}\npeak 33.0 MiB on cuda:0, "
    assert (out, err[: len(told)]) == ("done []\n", told)
    assert err.endswith(": fits, 78.57 GiB free\n")
    written = (tmp_path / f"out.{ending}").read_text()
    if ending == "txt":
        assert written.startswith(FORWARD)
    elif ending == "html":
        assert written.startswith("<!DOCTYPE html>")
        # Line 13 has a peak of 33 MiB and 4 KiB and keeps 4 KiB, the output and its workspace.
        (row,) = [one for one in written.split("<tr") if "<th>13<" in one]
        assert "<th>13<td>33.0 MiB<td" in row
        assert "<b>return</b> F.linear(x, self.weight)" in row
    else:
        (function,) = json.loads(written)["functions"]
        assert function["qual_name"] == "Net.forward"


def test_output_file_stays_where_it_was_asked_for(write, tmp_path):
    name = write("import os\ndef f(): pass\nf()\nos.mkdir('deep')\nos.chdir('deep')\n")

    main(["run", "-o", "out.txt", name])

    assert (tmp_path / "out.txt").read_text().startswith("no memory was in use on cuda:0 ")


UNMODELLED = """\
import torch

library = torch.library.Library("strict", "DEF")
library.define("mystery(Tensor x) -> Tensor")
library.impl("mystery", torch.clone, "CPU")

def work():
    x = torch.ones(256, device="cuda")
    return torch.ops.strict.mystery.default(x)

work()
"""


def test_strict_lets_the_script_fail_where_the_simulation_knows_too_little(write):
    name = write(UNMODELLED)
    done = command("--gpu", "24GiB", "--strict", "-f", "work", "-c", "hits", name)

    assert done.returncode == 1
    assert done.stdout == (
        "## work\n"
        "\n"
        "hits line  code\n"
        "   1    7  def work():\n"
        '   1    8      x = torch.ones(256, device="cuda")\n'
        "   1    9      return torch.ops.strict.mystery.default(x)\n"
        "\n"
        "peak 2.0 MiB reserved of 24.00 GiB: fitted until the program ended early, 24.00 GiB free\n"
        "simulated GPU: Simulated GPU (24.00 GiB) (cuda:0)\n"
    )
    frames = [line.strip() for line in done.stderr.splitlines() if line.startswith("  File ")]
    assert frames[:2] == [
        f'File "{os.path.abspath(name)}", line 11, in <module>',
        f'File "{os.path.abspath(name)}", line 9, in work',
    ]
    # The program calls an OpOverload, which is torch's Python on a GPU too.
    assert [frame.rpartition(", ")[2] for frame in frames[2:]] == ["in __call__"]
    assert done.stderr.splitlines()[-1] == (
        "pytorch_memlab.errors.UnmodelledOpError: strict.mystery.default has no memory model: "
        "what its CUDA kernels take is not known; without strict=True (--strict) only its outputs "
        "are counted, and the line is marked ?"
    )
    assert "Traceback" not in command("--gpu", "24GiB", name).stderr


@pytest.mark.parametrize("option", ["--strict", "--strict=estimates", "--dry-run"])
def test_a_gpu_is_simulated_for_these_beside_a_real_one(option, write, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    main(["run", option, write("import torch\nprint(torch.cuda.get_device_name())\n")])

    assert capsys.readouterr().out.startswith("NVIDIA H100 80GB HBM3\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gpu", "a100"], "NVIDIA A100-SXM4-80GB (chosen by --gpu)\n"),
        (["--gpu", "1GiB", "--count", "2"], "2 x Simulated GPU (1.00 GiB) (chosen by --gpu)\n"),
        (
            ["--dry-run"],
            (
                "NVIDIA H100 80GB HBM3, shapes only (the default of --dry-run; choose another with"
                " --gpu NAME or --gpu SIZE)\n"
            ),
        ),
        (
            ["--strict"],
            (
                "NVIDIA H100 80GB HBM3 (the default of --strict; choose another with"
                " --gpu NAME or --gpu SIZE)\n"
            ),
        ),
    ],
)
@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_which_gpu_is_simulated_and_why_is_said_before_the_script_runs(
    options, said, write, capsys
):
    name = write('import sys, torch\nkept = torch.ones(1).cuda()\nprint("runs", file=sys.stderr)\n')

    main(["run", "-o", "out.json", *options, name])

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(
        f"pytorch-memlab: simulating {said}runs\nmemory profile written to out.json\npeak 512 B on "
    )


@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_a_script_that_leaves_the_gpu_alone_is_told_so(write, capsys):
    main(["run", write("import torch\ndef f():\n    return torch.ones(3)\nf()\n")])

    out, err = capsys.readouterr()
    assert err == NOTICE + UNUSED
    assert "no CUDA tensor" not in out


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nkept = torch.ones(3).cuda()\n",
        "import torch\ntorch.ones(3).cuda()\ntorch.cuda.reset_accumulated_memory_stats()\n",
    ],
)
@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_a_script_that_uses_the_gpu_is_told_nothing(text, write, capsys):
    main(["run", write(text)])

    assert capsys.readouterr().err == NOTICE


def test_nor_is_a_script_of_a_process_of_its_own(write):
    """The tables and what is said of them come before the simulation ends with the process."""
    found = command(write("import torch\nkept = torch.ones(256).cuda()\n"))

    assert found.stderr == NOTICE


def test_processes_that_the_script_starts_are_not_measured(write):
    name = write(
        """\
        import torch
        from torch.multiprocessing import get_context

        def worker():
            assert torch.ones(256, device="cuda").is_cuda

        if __name__ == "__main__":
            process = get_context("spawn").Process(target=worker)
            process.start()
            process.join()
            assert not process.exitcode
        """
    )

    told = ". The processes that it started are not measured: start each with torchrun -m"
    assert told in command(name).stderr


TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2"}


@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_each_process_of_torchrun_writes_its_own_file_and_one_prints(
    write, capsys, monkeypatch, tmp_path
):
    name = write("import os, torch\nkept = torch.ones(256 << int(os.environ['RANK'])).cuda()\n")
    said = []
    for rank in ("1", "0"):
        for key, value in {**TORCHRUN, "RANK": rank}.items():
            monkeypatch.setenv(key, value)
        main(["run", "-c", "delta", "-o", "out.html", name])
        main(["run", "-c", "delta", "-o", "{rank}-{pid}.txt", name])
        main(["run", "-c", "delta", name])
        said.append(capsys.readouterr())

    of_two = NOTICE.replace("simulating ", "simulating 2 x ")  # one for each rank
    assert said[0] == ("", "")
    assert said[1].out.startswith("## <module>\n")
    written = [
        line
        for line in said[1].err.splitlines(keepends=True)
        if line == of_two or "written to" in line
    ]
    assert written == [
        of_two,
        "memory profile written to out.rank0.html\n",
        of_two,
        f"memory profile written to 0-{os.getpid()}.txt\n",
        of_two,
    ]
    # The last run has no file: its report has the peak.
    assert said[1].err.count("peak 1.0 KiB on cuda:0, ") == 2
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != name) == [
        f"0-{os.getpid()}.txt",
        f"1-{os.getpid()}.txt",
        "out.rank0.html",
        "out.rank1.html",
    ]
    assert "1.00K" in (tmp_path / f"0-{os.getpid()}.txt").read_text()
    assert "2.00K" in (tmp_path / f"1-{os.getpid()}.txt").read_text()


def test_one_simulated_rank_of_many_writes_the_file_that_was_asked_for(
    write, capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    name = write("import torch\nkept = torch.ones(256).cuda()\n")

    main(["run", "-o", "out.txt", name])
    main(["run", "-o", "out.{rank}.txt", name])
    main(["run", name])

    assert capsys.readouterr().out.startswith("peak 1.0 KiB on cuda:0")
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.3.txt", "out.txt"]
