"""Options of ``run`` in ``[tool.pytorch-memlab]`` of a pyproject.toml."""

from __future__ import annotations

import pytest

from pytorch_memlab.cli.command_line import command_parser
from pytorch_memlab.cli.main import main

SCRIPT = """\
import torch

def first():
    return torch.ones(256, device="cuda")

def second():
    return torch.ones(512, device="cuda")

kept = first(), second()
print(torch.cuda.get_device_name(), torch.cuda.device_count())
"""


def configure(write, text, folder=""):
    return write(f"[project]\nname = 'x'\n[tool.pytorch-memlab]\n{text}", f"{folder}pyproject.toml")


def tables(out):
    return [line for line in out.splitlines() if line.startswith(("##", "hits", "delta"))]


def test_options_by_their_long_names(write, capsys):
    configure(write, "gpu = 't4'\nnum-gpus = 2\ncolumns = ['hits', 'delta']\nfunction = 'second'")

    main(["run", write(SCRIPT)])

    out, err = capsys.readouterr()
    assert out.startswith("Tesla T4 2\n")
    assert tables(out) == ["## second", "hits delta line  code"]
    assert err.splitlines()[0] == (
        "pytorch-memlab: options from pyproject.toml: gpu, num-gpus, columns, function"
    )


def test_the_command_line_goes_before_the_file(write, capsys):
    configure(
        write, "gpu = 't4'\nwarmup = 5\ncolumns = 'hits,peak'\nfunction = ['first', 'second']"
    )

    main(["run", "--gpu", "v100", "-c", "delta", "-f", "second", "--warmup", "0", write(SCRIPT)])

    out, err = capsys.readouterr()
    assert out.startswith("Tesla V100")
    assert tables(out) == ["## second", "delta line  code"]
    assert "pyproject" not in err


def test_the_nearest_file_with_the_section_counts(write, capsys):
    configure(write, "gpu = 't4'")
    write("[tool.other]\n", "deep/pyproject.toml")
    write("this is no TOML", "deep/deeper/pyproject.toml")
    write(SCRIPT, "deep/deeper/script.py")

    main(["run", "deep/deeper/script.py"])

    assert capsys.readouterr().out.startswith("Tesla T4 1\n")


def test_a_module_has_the_file_of_the_folder_it_is_run_from(write, capsys):
    configure(write, "gpu = 't4'\nstrict = 'estimates'\ndry-run = false")
    write(SCRIPT, "some_module.py")

    main(["run", "-m", "some_module"])

    out, err = capsys.readouterr()
    assert out.startswith("Tesla T4 1\n")
    assert "options from pyproject.toml: gpu, strict\n" in err


def test_no_option_differs_from_what_a_file_may_fill_in():
    """An option that has its own default would never be taken from the file."""
    options = command_parser("run").parse(["script.py"])

    given = {name: value for name, value in vars(options).items() if value not in (None, False)}
    assert given == {"script": "script.py", "arguments": []}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpus = 't4'", "[tool.pytorch-memlab] has no option gpus: did you mean gpu?"),
        ("module = true", "[tool.pytorch-memlab] has no option module: the options are function, "),
        ("num-gpus = 'two'", "--num-gpus is a number from 1 to 128, not two"),
        ("dry-run = 'yes'", "--dry-run takes no value 'yes': --help shows what it takes"),
        ("gpu = true", "gpu is not true or false: see pytorch-memlab run --help"),
        ("gpu = 2026-01-01", "gpu is a string, a number, true, false or a list of those"),
        ("gpu = ", "is no TOML: Invalid value"),
        ("gpu = 'nothing-such'", None),
    ],
)
def test_a_mistake_in_the_file_is_one_line(text, said, write, capsys, tmp_path):
    configure(write, text)

    try:
        code = main(["run", write(SCRIPT)])
    except SystemExit as end:
        code = end.code

    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    start = f"pytorch-memlab run: error: {tmp_path / 'pyproject.toml'}"
    if said is None:  # found where the option is used, after it was said where it came from
        assert err.splitlines()[0] == "pytorch-memlab: options from pyproject.toml: gpu"
    else:
        separator = " " if said.startswith("is no TOML") else ": "
        assert err.startswith(f"{start}{separator}{said}")
        assert err.count("\n") == 1


def test_a_section_that_is_no_table(write, capsys, tmp_path):
    write("[tool]\npytorch-memlab = 3\n", "pyproject.toml")

    assert main(["run", write(SCRIPT)]) == 2
    assert capsys.readouterr().err == (
        f"pytorch-memlab run: error: {tmp_path / 'pyproject.toml'}: [tool.pytorch-memlab] is a"
        " table of options\n"
    )
