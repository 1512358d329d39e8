"""``pytorch-memlab completion``: what a shell offers for a word."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytorch_memlab.cli.command_line import parsers
from pytorch_memlab.cli.commands.completion import candidates
from pytorch_memlab.cli.main import main

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["ru"], ["run"]),
        (["--v"], ["--version"]),
        (["run", "--dr"], ["--dry-run"]),
        (["run", "--gpu", "rtx309"], ["rtx3090"]),
        (["run", "--gpu", "=", "rtx309"], ["rtx3090"]),
        (["run", "--gpu=rtx309"], ["--gpu=rtx3090"]),
        (["run", "-c", "cur"], ["current"]),
        (["show", "-c", "te"], ["temporary"]),
        (["run", "--columns", "peak,del"], ["peak,delta"]),
        (["run", "-c", "num_oom"], ["num_ooms", "num_oom_rejections"]),
        (["run", "--gpu", "t4", "trai"], []),  # names of files
        (["run", "train.py", "--dr"], []),  # the program's own
        (["run", "--output", "train.py", "--dr"], ["--dry-run"]),
        (["run", "--count", "--oth"], []),
        (["peak", "--by", "fun"], ["function"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["completion", "bash", ""], []),
        (["no_such_command", "--"], []),
    ],
)
def test_candidates(words, found):
    assert candidates(words, parsers()) == found


def test_all_commands_are_offered_first(capsys):
    main(["completion", "candidates", ""])

    offered = capsys.readouterr().out.splitlines()
    assert {"run", "peak", "completion", "--help", "--version"} <= set(offered)


BASH = """\
eval "$(pytorch-memlab completion bash)"
COMP_WORDS=(pytorch-memlab run --gpu rtx309)
COMP_CWORD=3
_pytorch_memlab
printf '<%s>' "${COMPREPLY[@]}"
COMP_WORDS=(pytorch-memlab peak --by '')
COMP_CWORD=3
_pytorch_memlab
printf '<%s>' "${COMPREPLY[@]}"
complete -p pytorch-memlab
"""


def test_bash_completes(tmp_path):
    command = tmp_path / "pytorch-memlab"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pytorch_memlab "$@"\n')
    command.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }

    done = subprocess.run(["bash", "-c", BASH], capture_output=True, text=True, env=environment)

    shown, _, registered = done.stdout.partition("complete ")
    assert shown.startswith("<rtx3090><line><function>")
    assert registered == "-o bashdefault -o default -F _pytorch_memlab pytorch-memlab\n"
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_asks_for_candidates(shell, capsys):
    main(["completion", shell])

    assert "pytorch-memlab completion candidates " in capsys.readouterr().out


def test_an_unknown_shell_is_told_the_shells_that_there_are(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["completion", "tcsh"])

    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert re.findall(r"\b(\w+)\b", told.partition("choose from")[2]) == ["bash", "zsh", "fish"]
