"""``pytorch-memlab fit --vary``: its whole output, its exit codes, and what it refuses."""

from __future__ import annotations

import re
import sys

import pytest
from support.fit_command import fitted

from pytorch_memlab.cli.commands import fit
from pytorch_memlab.cli.main import main
from pytorch_memlab.fitting import comparison

# 30 MiB, and 2 MiB for each item.
SCRIPT = """
    import argparse
    import torch

    parser = argparse.ArgumentParser(prog="script.py")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--length", type=int, default=1)
    options = parser.parse_args()
    kept = torch.zeros(30 * 2**20, dtype=torch.uint8, device="cuda")
    size = options.batch_size * options.length
    batch = torch.zeros(10 + 2 * size, 2**20, dtype=torch.uint8, device="cuda")
"""

NOTES = """\
peak: the most that PyTorch's allocator takes of the GPU, its cache included;
  left: what is free beside it and the CUDA context, whose size is an estimate;
  next: the next value, which does not fit, and the memory that it needs, by
  replays to 0.2%
"""

TABLE = (
    """\
script.py: 5 runs without values

largest --batch-size that fits
GPU                  memory  largest         peak        left  next
30MiB              30.0 MiB     none                           1: 42.0 MiB
50MiB              50.0 MiB        5     50.0 MiB         0 B  6: 52.0 MiB
1GiB               1.00 GiB       64    168.0 MiB   856.0 MiB  upper end

memory = 40.0 MiB + 2.0 MiB x --batch-size, from 1 to 64 (a line through 5 runs,
  off by 0 B)

"""
    + NOTES
)


pytestmark = pytest.mark.usefixtures("temporary_folder")


def test_the_largest_batch_of_three_gpus(write, capsys):
    words = ("--gpu", "1GiB,50MiB,30MiB", "--vary", "--batch-size=1:64", write(SCRIPT))
    code, out, err = fitted(capsys, *words)
    assert (code, err) == (0, "")
    assert out == TABLE


GRID = """\

largest --batch-size by --length
GPU                       1          2          4
50MiB                     5          2          1
60MiB                    10          5          2

largest --batch-size that fits, with --length 1
GPU                  memory  largest         peak        left  next
50MiB              50.0 MiB        5     50.0 MiB         0 B  6: 52.0 MiB
60MiB              60.0 MiB       10     60.0 MiB         0 B  upper end
"""


def test_a_grid(write, capsys):
    vary = ("--vary", "--batch-size 1:10", "--vary=--length=1,2,4")
    code, out, _ = fitted(capsys, "--gpu", "50MiB,60MiB", *vary, write(SCRIPT))
    assert code == 0
    assert "".join(out.splitlines(keepends=True)[1:11]) == GRID
    assert re.findall("memory = (.*) x", out) == [
        f"40.0 MiB + {length * 2}.0 MiB" for length in (1, 2, 4)
    ]


def test_no_value_fits(write, capsys):
    code, out, _ = fitted(capsys, "--gpu", "30MiB", "--vary", "--batch-size=1:64", write(SCRIPT))
    assert code == 3
    assert "30MiB              30.0 MiB     none                           1: 42.0 MiB\n" in out


def test_an_option_that_the_program_does_not_have(write, capsys):
    code, out, err = fitted(capsys, "--gpu", "1GiB", "--vary", "--batches=1:9", write(SCRIPT))
    assert code == 2
    assert " ".join(out.split()) == (
        "script.py: 2 runs without values the program does not run with --batches 1: script.py:"
        " error: unrecognized arguments: --batches=1"
    )
    assert err == (
        "pytorch-memlab: what the program printed is in FOLDER\n\n"
        "the program ended with exit status 2\n"
    )


REFUSING = """
    import os
    import torch

    batch = int(os.environ["BATCH"])
    if batch % 4 or batch > 40:
        raise ValueError(f"cannot split a batch of {batch}")
    kept = torch.zeros(batch, 2**20, dtype=torch.uint8, device="cuda")
"""


def test_a_program_that_refuses_values(write, capsys):
    words = ("--gpu", "1GiB,30MiB", "--vary", "BATCH=1:64", write(REFUSING))
    code, out, err = fitted(capsys, *words)
    assert code == 0
    assert "30MiB              30.0 MiB       28" in out
    assert "1GiB               1.00 GiB       40     40.0 MiB   984.0 MiB  44: fails\n" in out
    assert "the program takes multiples of 4 only, as far as its runs tell\n" in out
    assert "with BATCH 1 the program fails: ValueError: cannot split a batch of 1\n" in out
    assert err == "pytorch-memlab: what the program printed is in FOLDER\n"


def test_a_program_that_refuses_all_values(write, capsys):
    code, out, err = fitted(capsys, "--gpu", "1GiB", "--vary", "BATCH=41:43", write(REFUSING))
    assert code == 2
    assert " ".join(out.split()) == (
        "script.py: 2 runs without values the program does not run with BATCH 41: ValueError:"
        " cannot split a batch of 41"
    )
    assert "ValueError: cannot split a batch of 41\n" in err


CONFIGURED = """
    import json
    import sys
    import torch

    SIZE = 2
    if sys.argv[1:]:
        with open(sys.argv[1]) as file:
            SIZE = json.load(file)["train"]["size"]
    kept = torch.zeros(2 * SIZE, 2**20, dtype=torch.uint8, device="cuda")
"""


def test_values_of_files(write, capsys):
    config = write('{"train": {"size": 1}}', "config.json")
    script = write(CONFIGURED)
    words = ("--gpu", "50MiB", "--vary")
    for name, arguments in ((f"{config}:train.size", [config]), (f"{script}:SIZE", [])):
        code, out, _ = fitted(capsys, *words, f"{name}=1:64", script, *arguments)
        assert code == 0
        assert "50MiB              50.0 MiB       25     50.0 MiB         0 B  26: 52" in out
    code, out, _ = fitted(capsys, *words, f"{config}:train.size=1:64", script)
    assert code == 2
    assert f"the program does not read {config}" in " ".join(out.split())
    with open(config) as file:
        assert file.read() == '{"train": {"size": 1}}'


ASKING = """
    import os
    import torch

    free, _ = torch.cuda.mem_get_info()
    kept = torch.zeros(int(os.environ["BATCH"]), free // 10, dtype=torch.uint8, device="cuda")
"""


def test_a_program_that_asks_how_much_memory_there_is(write, capsys):
    words = ("--gpu", "100MiB,200MiB", "--vary", "BATCH=1:64", write(ASKING))
    code, out, _ = fitted(capsys, *words)
    assert code == 0
    assert "100MiB            100.0 MiB       10    100.0 MiB         0 B  11: 110.0 MiB\n" in out
    assert "200MiB            200.0 MiB       10    200.0 MiB         0 B  11: 220.0 MiB\n" in out


def test_a_variable_that_changes_nothing(write, capsys):
    code, out, _ = fitted(capsys, "--gpu", "50MiB", "--vary", "BATCHES=1:64", write(CONFIGURED))
    assert code == 2
    assert out.splitlines()[1:3] == [
        "no verdict: the memory is the same with all values of BATCHES that ran; look",
        "  whether the program uses it",
    ]


def test_pictures(write, capsys, tmp_path):
    picture = tmp_path / "curve.svg"
    words = ("--gpu", "50MiB,60MiB", "--vary", "--batch-size=1:64", "-o", str(picture))
    code, _, err = fitted(capsys, *words, write(SCRIPT))
    assert (code, err) == (0, f"picture written to {picture}\n")
    texts = re.findall(r"<text[^>]*>([^<]+)</text>", picture.read_text())
    assert {
        "script.py: memory by --batch-size",
        "memory that PyTorch needs",
        "50MiB, 60MiB: 40.0 MiB + 2.0 MiB each",
        "50MiB: 5",
        "60MiB: 10",
        "--batch-size",
    } <= set(texts)


def test_a_picture_without_matplotlib(write, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out, err = fitted(capsys, "--vary", "BATCH=1:2", "-o", "curve.svg", write(SCRIPT))
    assert (code, out) == (2, "")
    assert "need matplotlib: pip install 'pytorch-memlab[plot]' (import of" in err


def test_what_was_learned_before_an_interrupt(write, capsys, monkeypatch):
    def interrupts(runs, latest):
        if runs == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(fit, "_tell_progress", interrupts)
    words = ("--gpu", "100MiB,50MiB", "--vary", "--batch-size=1:512", write(SCRIPT))
    code, out, err = fitted(capsys, *words)
    assert code == 130
    assert "50MiB              50.0 MiB        ?                           not finished\n" in out
    assert "100MiB            100.0 MiB    >= 22     84.0 MiB    16.0 MiB  not finished\n" in out
    assert err == ("pytorch-memlab: interrupted: values with >= fit, and larger ones may fit too\n")


def test_an_interrupt_before_anything_is_known(write, capsys, monkeypatch):
    def interrupts(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, "run_all", interrupts)
    code, out, err = fitted(capsys, "--gpu", "1GiB", "--vary", "BATCH=1:9", write(SCRIPT))
    assert (code, out) == (130, "")
    assert err == "pytorch-memlab: interrupted before a run of the program ended\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--vary=512"], "--vary takes an option of the program"),
        (["--vary", "--a=x,y"], "--a has no numbers, of which the largest that fits could"),
        (["--vary", "A=1:9", "--vary", "A=1:8"], "A varies twice: give it once, with all of its"),
        (["--vary=A=1:9", "--vary=B=1:999:3"], "333 combinations are too many, 200 is the most"),
        (["--vary", "A=1:9", "-o", "a.html"], "cannot tell the format of a.html: end it in .svg"),
        (["-o", "a.svg"], "--output draws the curve of --vary: give that too"),
        (["--vary", "A=1:9", "--try="], "--vary and --try are two questions: ask one after"),
    ],
)
def test_what_it_refuses(write, capsys, words, message):
    code = main(["fit", *words, write("import none_such_module")])
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"pytorch-memlab fit: error: {message}")
