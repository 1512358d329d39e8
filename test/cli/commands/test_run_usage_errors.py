"""``pytorch-memlab run`` says what is wrong in one line, before anything runs."""

from __future__ import annotations

import pytest
from support.run_command import SCRIPT, UNUSED, command

from pytorch_memlab.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.py"], "cannot open the script missing.py: No such file or directory"),
        (["env", "python", "script.py"], "env is a command: name the script, as in run train.py"),
        (["."], ". has no __main__.py: name the script in it"),
        (["-m", "no_such_module"], "there is no module named no_such_module"),
        (["-m", "json.missing"], "there is no module named json.missing"),
        (["-m", "os.path.join"], "cannot find the module os.path.join: "),
        (["--gpu", "h10", "script.py"], "h100"),
        (["-m", "script.py"], "script.py is a file and no module: leave out -m"),
        (["--num-gpus", "0", "script.py"], "--num-gpus is a number from 1 to 128, not 0"),
        (["--num-gpus", "129", "script.py"], "--num-gpus is a number from 1 to 128, not 129"),
        (["--count", "two", "script.py"], "--count is a number from 1 to 128, not two"),
        (["--reserve", "x", "script.py"], "--reserve is a size such as '450MiB', or bytes, not"),
        (["--cuda-context=450", "script.py"], "not '450' (did you mean 450MiB or 450GiB?)"),
        (["-c", "active_bytes.all.peek", "script.py"], "active_bytes.all.peak"),
        (["-f", "Net.forwrd", "script.py"], "there is no function Net.forwrd; "),
        (["-f", "Net.forwrd", "script.py"], "script.py has Net.forward"),
        (["-f", "math:sqrt", "script.py"], "sqrt"),
        (["-f", "torch.nn:Nothing", "script.py"], "module 'torch.nn' has no attribute 'Nothing'"),
        (["-o", "out.pdf", "script.py"], "end it in .txt, .html, .json"),
        (["-o", "missing/out.txt", "script.py"], "cannot write missing/out.txt"),
        ([], "SCRIPT is missing: for example, pytorch-memlab run train.py --epochs 1"),
        (["--no-such-option", "script.py"], "unknown option --no-such-option; options of the"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, said, write, capsys):
    write(SCRIPT)

    try:
        code = main(["run", *arguments])
    except SystemExit as ending:  # argparse's own way out
        code = ending.code

    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert said in err
    assert err.startswith("pytorch-memlab")
    assert err.count("\n") == 1


def test_a_file_that_cannot_be_written_in_the_end_costs_no_numbers(write, capsys, tmp_path):
    (tmp_path / "gone").mkdir()
    write("import os\ndef f():\n    os.rmdir('gone')\nf()\n")

    main(["run", "--all", "-o", "gone/out.txt", "script.py"])

    out, err = capsys.readouterr()
    assert "## f" in out
    assert err.endswith(f"cannot write gone/out.txt: No such file or directory\n{UNUSED}")


def test_help_tells_what_is_profiled(capsys):
    with pytest.raises(SystemExit) as ending:
        main(["run", "--help"])

    shown = capsys.readouterr().out
    assert ending.value.code == 0
    assert "usage: pytorch-memlab run [options] (SCRIPT | -m MODULE) [ARGS ...]" in shown
    assert "Run a Python program and show the GPU memory used by each line." in shown


def test_a_value_that_an_option_does_not_take_is_one_line(write):
    done = command("--strict=maybe", write("pass"))
    assert done.returncode == 2
    assert done.stderr == (
        "pytorch-memlab run: error: --strict takes no value 'maybe': --help shows what it takes\n"
    )
