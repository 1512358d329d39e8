"""A mistyped command line ends with exit code 2 and one line that says what would be right."""

from __future__ import annotations

import pytest

from pytorch_memlab import __version__
from pytorch_memlab.cli.command_line import command_parser
from pytorch_memlab.cli.main import main


def answer(arguments, capsys):
    try:
        code = main(arguments)
    except SystemExit as end:  # argparse's own way out
        code = end.code
    return code, *capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["train.py", "--epochs", "1"],
            "there is no command train.py: did you mean: pytorch-memlab run train.py --epochs 1",
        ),
        (
            ["--gpu", "t4", "my train.py"],
            "unknown option --gpu: did you mean: pytorch-memlab run --gpu t4 'my train.py'",
        ),
        (["rum", "train.py"], "there is no command rum: did you mean run?"),
        (["--versoin"], "unknown option --versoin: did you mean --version?"),
        (["-v"], "unknown option -v: the commands are run, "),
        (["xyz"], "there is no command xyz: the commands are run, "),
        (["switches"], "there is no command switches: the commands are run, "),  # not watch
    ],
)
def test_before_a_command(arguments, said, capsys):
    code, out, err = answer(arguments, capsys)

    assert (code, out) == (2, "")
    assert err.startswith(f"pytorch-memlab: error: {said}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--batch", "4", "train.py"],
            "unknown option --batch; options of the script go after it: run SCRIPT ARGS",
        ),
        (["--colums", "peak", "train.py"], "unknown option --colums: did you mean --columns?"),
        (["--ouput=x.html", "train.py"], "unknown option --ouput: did you mean --output?"),
        (
            ["-x", "train.py"],
            "unknown option -x; options of the script go after it: run SCRIPT ARGS",
        ),
        (["--gpu", "t4"], "SCRIPT is missing: for example, pytorch-memlab run train.py --epochs 1"),
        (["--num-gpus"], "argument --num-gpus: expected one argument"),
    ],
)
def test_of_run(arguments, said, capsys):
    assert answer(["run", *arguments], capsys) == (2, "", f"pytorch-memlab run: error: {said}\n")


@pytest.mark.parametrize("command", ["peak", "timeline"])
def test_a_gpu_of_a_snapshot_has_a_number_or_the_name_of_torch(command):
    parser = command_parser(command)

    found = {
        parser.parse(["--device", name, "-o", "a.html", "FILE"]).device for name in ("1", "cuda:1")
    }
    assert found == {1}


@pytest.mark.parametrize("name", ["cpu", "cuda:", "1.5", "²"])
def test_what_is_no_gpu(name, capsys):
    assert answer(["peak", f"--device={name}", "FILE"], capsys) == (
        2,
        "",
        (
            "pytorch-memlab peak: error: argument --device: a GPU is named 1 or cuda:1, not"
            f" '{name}'\n"
        ),
    )


def test_of_another_command(capsys):
    assert answer(["peak", "one.pickle", "two.pickle"], capsys) == (
        2,
        "",
        "pytorch-memlab peak: error: unexpected argument two.pickle\n",
    )


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_version(option, capsys):
    assert answer([option], capsys) == (0, f"pytorch-memlab {__version__}\n", "")


def test_alone_it_prints_the_help(capsys):
    helped = answer(["--help"], capsys)

    assert answer([], capsys) == helped
    assert helped[0] == 0
    assert helped[1].startswith("usage: pytorch-memlab COMMAND [options]\n")


@pytest.mark.parametrize(
    "spelling", [["--count", "2"], ["--num-gpus", "2"], ["--context=1GiB", "--others", "512MiB"]]
)
def test_former_spellings_mean_the_same(spelling, write, capsys):
    text = "import torch\nprint(torch.cuda.device_count(), torch.cuda.mem_get_info()[0] >> 20)\n"

    main(["run", "--gpu", "4GiB", *spelling, write(text)])

    expected = "1 2560\n" if len(spelling) == 3 else "2 4096\n"
    assert capsys.readouterr().out.startswith(expected)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--gpu", "", "script.py"], "unknown GPU ''. Give its memory, such as 12GiB"),
        (["fit", "--gpu", "", "script.py"], "unknown GPU ''. Give its memory, such as 12GiB"),
        (
            ["run", "--gpu", "t4", "--reserve", "", "script.py"],
            "--reserve is a size such as '450MiB', or bytes, not ''",
        ),
        (
            ["fit", "--reserve=", "script.py"],
            "--reserve is a size such as '450MiB', or bytes, not ''",
        ),
        (
            ["run", ""],
            "the name of the script is empty: name a file, or - for standard input",
        ),
        (["fit", ""], "the name of the script is empty: name a file, or - for standard input"),
    ],
)
def test_a_variable_of_the_shell_that_is_not_set(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("print('ran')\n")

    code, out, err = answer(arguments, capsys)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"pytorch-memlab {arguments[0]}: error: {said}")
