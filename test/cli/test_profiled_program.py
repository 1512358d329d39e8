"""A program under ``run`` finds ``profile`` in builtins; and which device is measured."""

from __future__ import annotations

import builtins
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.python_process import run_python

from pytorch_memlab.cli.main import main

BARE = """\
import torch

@profile
def first():
    return torch.ones(256, device="cuda")

def second():
    return first()

kept = second()
"""


def tables(out):
    return [line.removeprefix("## ") for line in out.splitlines() if line.startswith("## ")]


def test_a_bare_profile_works_and_is_gone_afterwards(write, capsys):
    main(["run", "-c", "delta", write(BARE)])

    assert tables(capsys.readouterr().out) == ["first"]
    assert not hasattr(builtins, "profile")


def test_so_it_does_in_modules_that_the_program_imports(write, capsys):
    write(BARE, "bare_module.py")

    main(["run", "-c", "delta", write("import bare_module\n")])

    assert tables(capsys.readouterr().out) == ["first"]


def test_a_profile_of_the_program_goes_before_it(write, capsys):
    main(["run", "-c", "hits", write(f"def profile(f): return print('own') or f\n{BARE}")])

    out = capsys.readouterr().out
    assert out.startswith("own\n")
    assert tables(out) == ["profile", "first", "second", "<module>"]


def test_a_profile_that_was_in_builtins_stays(write, capsys, monkeypatch):
    monkeypatch.setattr(builtins, "profile", lambda f: f, raising=False)
    before = builtins.profile

    main(["run", "-c", "hits", write(BARE)])

    assert builtins.profile is before
    assert tables(capsys.readouterr().out) == ["first", "second", "<module>"]


def test_the_decorated_functions_of_a_program_that_fails_are_the_ones_shown(write, capsys):
    with pytest.raises(ZeroDivisionError):
        main(["run", "-c", "hits", write(f"{BARE}1 / 0\n")])

    assert tables(capsys.readouterr().out) == ["first"]


TWO_GPUS = """\
import torch

def fill(device, count):
    return torch.ones(count, device=device)

kept = fill("cuda:0", 256), fill("cuda:1", 512)
"""


@pytest.mark.parametrize(("device", "delta"), [("cuda:1", "1.00K"), ("0", "512.00B")])
@pytest.mark.parametrize("decorator", ["", "@profile\n"])
def test_one_device_is_measured(device, delta, decorator, write, capsys):
    text = TWO_GPUS.replace("def fill", f"{decorator}def fill")

    named = [] if decorator else ["-f", "fill"]
    main(["run", "--num-gpus", "2", "--device", device, "-c", "delta", *named, write(text)])

    out = capsys.readouterr().out
    assert tables(out) == ["fill"]
    assert f"{delta}    {4 + bool(decorator)}      return torch.ones" in out


def test_a_device_that_is_not_there(write, capsys):
    assert main(["run", "--device", "cuda:1", write(TWO_GPUS)]) == 2
    assert capsys.readouterr().err == (
        "pytorch-memlab run: error: no device 'cuda:1' here: there is cuda:0, and cpu\n"
    )


@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_a_program_from_standard_input(write, capsys, monkeypatch, tmp_path):
    write("value = 3\n", "beside.py")
    program = (
        "import beside, sys, torch\n"
        "def f():\n    return torch.ones(256, device='cuda')\n"
        "kept = f()\n"
        "print(sys.argv, __name__, beside.value, globals().get('__file__'))\n"
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO(program))
    monkeypatch.delitem(sys.modules, "beside", raising=False)

    main(["run", "-c", "delta", "-f", "f", "-", "--epochs"])

    assert capsys.readouterr().out == (
        "['-', '--epochs'] __main__ 3 None\n"
        "## f\n"
        "\n"
        "delta line  code\n"
        "0.00B    2  def f():\n"
        "1.00K    3      return torch.ones(256, device='cuda')\n"
        "\n"
        "peak 2.0 MiB reserved + 601.0 MiB context of 79.19 GiB: fits, 78.60 GiB free\n"
        "simulated GPU: NVIDIA H100 80GB HBM3 (cuda:0)\n"
    )


def test_standard_input_fails_as_python_has_it(tmp_path):
    root = str(Path(__file__).parents[2])
    program = "def f():\n    1 / 0\nf()\n"
    plain = subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True)
    ours = run_python(
        ["-m", "pytorch_memlab", "run", "-"],
        input=program,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
    )

    assert ours.returncode == plain.returncode == 1
    assert ours.stderr.endswith(plain.stderr)
