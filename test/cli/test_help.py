"""The help, word for word, at 80 columns."""

from __future__ import annotations

import argparse

import pytest

from pytorch_memlab.cli.command_line import COMMANDS, command_parser, main_parser

HEAD = """\
usage: pytorch-memlab run [options] (SCRIPT | -m MODULE) [ARGS ...]

Run a Python program and show the GPU memory used by each line.

By default all functions of the script and its top level, <module>, are
profiled. Use --function or @profile to choose. Without a CUDA GPU, a
simulated H100 is used (--gpu to change).

The program runs unmodified. The report follows its end, also after an error
or Ctrl-C. A ? after a line number says that the numbers of this line are a
lower bound: the simulation did not count all of its memory. A * says that
they rest on values that a dry run does not have: on a size that it assumed,
mostly as an upper bound, or that --assume gave, or on a value that the
program read. A ~ says that they include an estimate. The notes at the end say
what.
"""

CODES_AND_PROGRAM = """\
exit codes:
  that of the program, 1 after an error, 0 after --steps; and
  1  in place of 0, a file could not be written: the tables are printed
  2  the command line cannot be carried out, and nothing ran; or --max-peak has
     no verdict, because the program used no memory of a GPU
  3  the program ended without an error, and reserved more than --max-peak
  Of several, the first counts: the signal that ended the program, its own
  code if that is not 0, 3 or 2, 1.

Options can also stand in pyproject.toml, in the folder of the script or above
it, under their long names: in a table [tool.pytorch-memlab], gpu = "t4" and
dry-run = true. The command line goes before the file. With PYTORCH_MEMLAB=0
in the environment the program runs plainly.

what to run:
  -m, --module          run a module, as python -m does
  SCRIPT                the file, or with -m the module, to run; - for
                        standard input
  ARGS                  arguments of the program
"""

PROFILED = """\
what to profile:
  -f, --function LIST   profile only these: a function, class or method of the
                        script (Net.forward), a method of any class (forward),
                        a pattern ('Block.*'), or one of another module:
                        package.module:Net.forward imports the module before
                        the script runs, 'package.*:*.forward' waits until the
                        script imports those that match. Separated by commas,
                        repeatable
  -c, --columns LIST    show tables of these columns, with every line, instead
                        of the report; with --top, --sort or --all the report
                        has them. They are peak (the most memory in use while
                        the line ran), reserved (the most memory that PyTorch
                        took from the GPU), current (memory in use when the
                        line ended), hits (how often the line ran), kept (what
                        a hit allocated, calls included, and did not free),
                        freed (what a hit freed that was in use before), delta
                        (kept less freed), temporary (how far above the larger
                        of its start and its end the line went), time (seconds
                        in the line, calls included), and any field of
                        torch.cuda.memory_stats(), such as
                        allocated_bytes.all.peak; separated by commas,
                        repeatable (default: peak,kept,temporary)
  --device DEVICE       measure this device only, such as cuda:1 (default:
                        every device in use)
  --warmup N            leave the first N optimizer steps out of the numbers
                        (default: 0)
  --steps N             end the program after N optimizer steps (not counting
                        the warm-up), with exit code 0, as if it had finished
                        (default: let it finish)
"""

REPORT = """\
output:
  --top N               report the N functions that add most memory, and N
                        lines of each (default: 10)
  --sort KEY            order of the functions: peak, kept, temporary, name,
                        line (default: what a call adds, kept and temporary
                        memory together, without that of the functions that
                        they call)
  --all                 report every function and line in the order of the
                        source, also those that added nothing
"""

SIMULATION = """\
simulation:
  --gpu NAME|SIZE|FILE  simulate this GPU, also where there is a real one: a
                        name (t4, rtx4090, a100, h100), its memory (24GiB), or
                        a TOML file with its name, memory, compute_capability
                        and multiprocessors (default: the GPU of this machine,
                        or h100 if it has none)
  --num-gpus N          number of GPUs to simulate (default: 1, or as many as
                        a launcher starts ranks here)
  --dry-run             simulate shapes only: nothing is computed and tensors
                        take no host memory, so that a step of any model takes
                        seconds or minutes. Lines that read values are marked.
                        No file or folder that is there is changed, removed or
                        renamed, and no file of tensors is written; the script
                        sees its own changes until it ends. Everything else
                        that the script does happens: it makes new folders and
                        files, starts commands, and uses the network
  --allow-writes        let a dry run change, remove and rename files, write
                        files of tensors with zeros or arbitrary bytes for the
                        values that it does not have, and start every command
  --assume LIST         the size of what values decide, which a dry run takes
                        to be as large as it can be: a fraction of the
                        elements (nonzero=0.001, mask=2%), rounded up, or
                        their number (unique=120), for each of these ops:
                        nonzero, mask, masked_select, unique,
                        unique_consecutive, repeat_interleave, bincount,
                        coalesce, nms; or for a line of a file, which goes
                        before them: train.py:12=0.001. Separated by commas,
                        repeatable
  --cuda-context SIZE   memory that the CUDA context takes of each simulated
                        GPU, such as 450MiB (default: a built-in estimate for
                        a GPU with a name, 0 for a size)
  --reserve SIZE        memory that other processes use on each simulated GPU
                        (default: 0)
  --no-try              do not try remedies when the program runs out of
                        memory, nearly fills the GPU, or its memory grows. By
                        default, it runs again with each of them, in other
                        processes, for at most 30 s
  --advice              also if the program fits with room: try all that may
                        lower its peak, and show what does
  --strict              simulate, and fail at the first line that would be
                        marked ? or *: memory is not counted, or a dry run
                        assumes a value or a size
  --strict=estimates    simulate, and fail at the first line that would be
                        marked ?, * or ~ (an estimate is counted)

help:
  -h, --help            show this help
"""

OVERVIEW = """\
usage: pytorch-memlab COMMAND [options]

A line-by-line GPU memory profiler for PyTorch, on a GPU or a simulated one.

profile a program:
  run         Run a Python program and show the GPU memory used by each line.
"""

REST = """\
set up:
  debug       Print what a report of a fault needs: versions, GPUs, driver,
              settings, patches, tracers.
  completion  Print what makes a shell complete commands, options and values.

help:
  -h, --help     show this help
  -V, --version  show the version

pytorch-memlab COMMAND --help shows the options of a command.

exit codes:
  0  done; run ends with the code of the program, 1 after an error, and 1 in place of 0 if a
     file could not be written
  1  a comparison found more growth than its --fail-over allows
  2  the command line cannot be carried out
  3  a program needs more memory than it may have
"""


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("part", [HEAD, CODES_AND_PROGRAM, PROFILED, REPORT, SIMULATION])
def test_of_run(part):
    assert f"\n{part}" in "\n" + command_parser("run").format_help()


def test_of_all_commands():
    text = main_parser().format_help()

    assert text.startswith(OVERVIEW)
    assert text.endswith(REST)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_shown_with_the_first_line_of_its_help(name):
    text = " ".join(main_parser().format_help().split())

    assert f" {name} {COMMANDS[name].__doc__.partition(chr(10))[0]} " in text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_line_fits_and_every_option_has_a_long_form_and_a_help(name):
    parser = command_parser(name)

    assert [line for line in parser.format_help().splitlines() if len(line) > 80] == []
    for action in parser._actions:
        assert action.help
        if action.option_strings and action.help != argparse.SUPPRESS:
            assert any(option.startswith("--") for option in action.option_strings)


@pytest.mark.parametrize("columns", ["1", "30"])
def test_a_narrow_terminal_has_a_help_too(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)

    assert " run " in main_parser().format_help()
    assert "--dry-run" in command_parser("run").format_help()
