"""Options that several commands take: what they refuse, and in which words."""

from __future__ import annotations

import pytest

from pytorch_memlab.cli.main import main

FEW = "a number from 1 on"
ROWS = "a number of rows from 1 on"
STEPS = "a number of optimizer steps from 1 on"


def refuse(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 2


@pytest.mark.parametrize("value", ["0", "-3", "two", "1.5", ""])
@pytest.mark.parametrize(
    ("command", "option", "kind"),
    [
        ("run", "--top", FEW),
        ("show", "--top", FEW),
        ("top", "--rows", FEW),
        ("diff", "--rows", FEW),
        ("peak", "--top", ROWS),
        ("run", "--steps", STEPS),
        ("fit", "--steps", STEPS),
        ("run", "--warmup", "a number of optimizer steps from 0 on"),
    ],
)
def test_numbers_that_are_too_small_or_none(command, option, kind, value, capsys):
    if option == "--warmup" and value == "0":
        return
    refuse(command, f"{option}={value}", "file")
    said = f"pytorch-memlab {command}: error: {option} is {kind}, not {value or repr(value)}\n"
    assert capsys.readouterr().err == said


def test_a_short_name_says_the_long_one(capsys):
    refuse("top", "-n", "0", "file")
    assert capsys.readouterr().err.endswith(f"error: --rows is {FEW}, not 0\n")


@pytest.mark.parametrize("command", ["peak", "timeline", "replay"])
def test_a_gpu_is_named_by_its_number(command, capsys):
    refuse(command, "--device", "gpu1", "file")
    said = "argument --device: a GPU is named 1 or cuda:1, not 'gpu1'\n"
    assert capsys.readouterr().err.endswith(said)


def test_the_help_of_run_tells_a_report_from_a_page(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "print the headline alone: the report (.txt), a page to explore in a browser" in text
