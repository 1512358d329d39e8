"""The messages of commands about the mistakes that people make first."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import pytest
from support.python_process import run_python

from pytorch_memlab.cli.main import main
from pytorch_memlab.cli.notices import hint_on

OK = 'import torch\nx = torch.zeros(1 << 20, device="cuda")\n'
UNUSED = "the program created no CUDA tensor"


def test_the_headline_and_the_verdict_are_shown_when_the_report_goes_to_a_file(write, capsys):
    main(["run", "--gpu", "24GiB", write(OK)])
    report = capsys.readouterr().out.split("\n\n")[0]
    main(["run", "--gpu", "24GiB", "-o", "out.txt", "-o", "out.json", "script.py"])
    out, err = capsys.readouterr()
    _head, _written, text = err.partition("memory profile written to out.json\n")
    assert (out, text) == ("", f"{report}\n")
    assert "peak 4.0 MiB on cuda:0" in report
    assert ": fits, " in report


def test_the_headline_is_shown_with_columns_too(write, capsys):
    main(["run", "--gpu", "24GiB", "-o", "out.txt", write(OK)])
    expected = capsys.readouterr().err
    main(["run", "--gpu", "24GiB", "-c", "hits", "-o", "out.txt", "script.py"])
    assert capsys.readouterr().err == expected


def test_the_headline_says_where_memory_ran_out_when_the_report_goes_to_a_file(write, capsys):
    name = write('import torch\nx = torch.zeros(1 << 30, device="cuda")\n')
    with pytest.raises(RuntimeError):
        main(["run", "--no-try", "--gpu", "1GiB", "-o", "out.txt", name])
    lines = capsys.readouterr().err.splitlines()
    assert "out of memory at script.py:2 in <module>, asked for 4.00 GiB" in lines


@pytest.mark.parametrize("command", ["run", "fit"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--gpu", "t4"],
            (
                "--gpu stands after script.py, so script.py gets it; an option of pytorch-memlab"
                " {0} goes before: pytorch-memlab {0} --gpu ... script.py\n"
            ),
        ),
        (
            ["--steps=3", "--allow-writes", "out"],
            (
                "--steps and --allow-writes stand after script.py, so script.py gets them;"
                " an option of pytorch-memlab {0} goes before: pytorch-memlab {0} --steps ..."
                " script.py\n"
            ),
        ),
        (["--", "--gpu", "t4"], None),
        (["--epochs", "3", "gpu"], None),
        (["--help"], None),
    ],
)
def test_an_option_behind_the_program_is_pointed_out(command, arguments, said, write, capsys):
    options = ["--gpu", "24GiB"]
    main([command, *options, write(OK), *arguments])
    err = capsys.readouterr().err
    assert ("pytorch-memlab: " + said.format(command) in err) if said else ("after" not in err)


@pytest.mark.parametrize(
    "text",
    [
        'import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument("--gpu")\n',
        "def main(gpu=None): ...\n",
        "class Options:\n    gpu: str\n",
    ],
)
def test_an_option_that_the_program_has_is_its_own(text, write, capsys):
    main(["run", write(text), "--gpu", "t4"])
    assert "stands after" not in capsys.readouterr().err


PARSER = "import argparse, torch\nparser = argparse.ArgumentParser()\n"


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (f"{PARSER}parser.parse_args()\n", ["-h"]),
        (f"{PARSER}parser.parse_args()\n", ["--hel"]),
        (f"{PARSER}parser.parse_args()\n", ["--epochs"]),  # which it does not have
        ('print("usage")\nraise SystemExit\n', ["--help"]),
        ("raise SystemExit('no data')\n", []),
        ("import nothing_of_this_name\n", []),
        ("input()\n", []),
    ],
)
def test_a_program_that_did_nothing_gets_no_advice_about_cuda(
    text, arguments, write, capsys, monkeypatch
):
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115 - the test ends at once
    with pytest.raises((SystemExit, ImportError, EOFError)):
        main(["run", write(text), *arguments])
    out, err = capsys.readouterr()
    assert UNUSED not in err
    assert "added nothing" not in out


@pytest.mark.parametrize("text", ["import torch\n", "import sys\nsys.exit(0)\n"])
def test_a_program_that_came_to_its_end_gets_it(text, write, capsys):
    with contextlib.suppress(SystemExit):
        main(["run", write(text)])
    assert UNUSED in capsys.readouterr().err


WITHOUT_TORCH = """\
import sys; sys.modules['torch'] = None; sys.argv[0] = 'pytorch-memlab'
from pytorch_memlab.cli.main import entry; entry()
"""


@pytest.mark.parametrize("command", ["run", "show", "fit"])
def test_an_environment_without_torch_is_one_line(command, write, tmp_path):
    given = script = write(OK)
    if command == "show":
        given = str(tmp_path / "profile.json")
        main(["run", "-o", given, script])
    done = run_python(["-c", WITHOUT_TORCH, command, given], cwd=tmp_path, imports_package=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"pytorch-memlab {command}: error: PyTorch is not installed for {sys.executable}:"
        f" {sys.executable} -m pip install torch installs it, or run the command in the"
        " environment that has it\n"
    )


def test_the_peak_of_a_profile_is_read_without_torch(write, tmp_path):
    main(["run", "--history", "-o", "profile.json", write(OK)])
    whole, without = (
        run_python([*start, "peak", "profile.json"], cwd=tmp_path, imports_package=True)
        for start in (["-m", "pytorch_memlab"], ["-c", WITHOUT_TORCH])
    )
    assert without.returncode == 0, without.stderr
    assert without.stdout == whole.stdout != ""


def test_a_program_that_lacks_torch_of_its_own_fails_as_it_would(write):
    with pytest.raises(ModuleNotFoundError, match="torchy"):
        main(["run", write("import torchy\n")])


RELATIVE = "train.py is part of a package, which it imports from: pytorch-memlab"


def test_a_relative_import_in_a_script_names_the_module_to_run(write, tmp_path):
    write("", "pkg/__init__.py")
    write("", "pkg/sub/__init__.py")
    write("X = 1\n", "pkg/net.py")
    write("from ..net import X\n", "pkg/sub/train.py")

    def last_line(*arguments: str, cwd: Path = tmp_path) -> str:
        done = run_python(["-m", "pytorch_memlab", *arguments], cwd=cwd)
        assert done.returncode
        return done.stderr.splitlines()[-1]

    hint = f"pytorch-memlab: {RELATIVE} run -m pkg.sub.train"
    assert last_line("run", "pkg/sub/train.py") == hint
    deep = tmp_path / "pkg" / "sub"
    assert last_line("run", "train.py", cwd=deep) == f"{hint}, in the folder {tmp_path}"
    fits = f"pytorch-memlab: {RELATIVE} fit -m pkg.sub.train"
    assert last_line("fit", "--gpu", "t4", "pkg/sub/train.py") == fits
    main(["run", "-m", "pkg.sub.train"])  # what the line says works


def test_a_folder_without_an_init_is_a_package_too(write, tmp_path):
    write("", "src/train.py")
    message = "attempted relative import with no known parent package"
    assert hint_on(message, "run", "src/train.py") == f"{RELATIVE} run -m src.train"
    assert hint_on(message, "run", "") == ""  # a module


def test_mps_is_not_simulated_and_that_is_said(write, tmp_path):
    write('import torch\ntorch.zeros(4, device="mps")\n')
    for command in (["run"], ["fit", "--gpu", "t4"]):
        done = run_python(["-m", "pytorch_memlab", *command, "script.py"], cwd=tmp_path)
        assert done.stderr.splitlines()[-1] == (
            'pytorch-memlab: GPUs of Apple ("mps") are not simulated: let the program use the'
            ' device "cuda"'
        )


def test_a_gpu_named_mps_is_not_simulated(write, capsys):
    assert main(["run", "--gpu", "mps", write(OK)]) == 2
    assert "error: unknown GPU 'mps' (GPUs of Apple are not simulated). " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["timeline", "x.pickle"],
            (
                "-o/--output is missing: for example, pytorch-memlab timeline"
                " -o memory.html snapshot.pickle"
            ),
        ),
        (
            ["merge", "a.json", "b.json"],
            (
                "-o/--output is missing: for example, pytorch-memlab merge"
                " -o all.memlab.json out.rank0.json out.rank1.json"
            ),
        ),
        (
            ["diff", "a.json"],
            (
                "AFTER is missing: for example, pytorch-memlab diff"
                " before.memlab.json after.memlab.json"
            ),
        ),
        (
            ["diff"],
            (
                "BEFORE and AFTER are missing: for example, pytorch-memlab diff"
                " before.memlab.json after.memlab.json"
            ),
        ),
        (
            ["timeline"],
            (
                "-o/--output and FILE are missing: for example, pytorch-memlab timeline"
                " -o memory.html snapshot.pickle"
            ),
        ),
        (["top"], "FILE is missing: for example, pytorch-memlab top train.memlab.json"),
    ],
)
def test_what_is_missing_has_an_example(arguments, said, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"pytorch-memlab {arguments[0]}: error: {said}\n"


@pytest.mark.parametrize(
    ("command", "names", "example"),
    [
        ("timeline", ["my run.json"], "timeline -o memory.html 'my run.json'"),
        ("timeline", ["--by", "line", "a.json"], "timeline -o memory.html a.json"),
        ("merge", ["a.json", "b.json"], "merge -o all.memlab.json a.json b.json"),
    ],
)
def test_the_example_has_the_files_that_were_given(
    command, names, example, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for name in names:
        if name.endswith(".json"):
            (tmp_path / name).touch()
    with pytest.raises(SystemExit):
        main([command, *names])
    assert capsys.readouterr().err == (
        f"pytorch-memlab {command}: error: -o/--output is missing: for example, pytorch-memlab"
        f" {example}\n"
    )
