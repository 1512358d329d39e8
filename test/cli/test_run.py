"""``pytorch-memlab run``: what is profiled, what is shown, and that the script notices nothing."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from support.python_process import run_python

from pytorch_memlab import clear_global_line_profiler
from pytorch_memlab.cli.main import main

ROOT = Path(__file__).parents[2]

SCRIPT = """\
import sys

import torch
from torch.nn import functional as F


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(256, 1024))

    def forward(self, x):
        return F.linear(x, self.weight)


def make():
    def kibibytes(count):
        return torch.zeros(count << 10, dtype=torch.uint8)

    return kibibytes(1).cuda()


net = Net().cuda()
kept = make()
out = net(torch.ones(1024, device="cuda"))
print("done", sys.argv[1:])
"""

FORWARD = """\
peak 33.0 MiB on cuda:0, less than 0.1 % of 79.19 GiB (simulated NVIDIA H100
  80GB HBM3)
  at script.py:13 in Net.forward: return F.linear(x, self.weight)
  held by 32.0 MiB workspaces, 1.0 MiB parameters, 6.0 KiB inputs and other
    tensors
  peak 34.0 MiB reserved + 601.0 MiB context of 79.19 GiB: fits, 78.57 GiB free

## Net.forward  script.py:12
  peak   kept temporary line  code
33.01M 32.00M         0   13          return F.linear(x, self.weight)  <- peak

1 line added nothing: --all shows them
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A folder to work in, and a function that writes a script there."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="script.py"):
        (tmp_path / name).write_text(dedent(text))
        return name

    return write


NOTICE = (
    "pytorch-memlab: simulating NVIDIA H100 80GB HBM3 (this machine has no CUDA GPU; choose another"
    " with --gpu NAME or --gpu SIZE)\n"
)
UNUSED = (
    "pytorch-memlab: the program created no CUDA tensor, so all numbers are 0: move the model and"
    ' its inputs to the device "cuda"\n'
)


def profiled(capsys):
    """The names of the functions whose tables were printed."""
    lines = capsys.readouterr().out.splitlines()
    heads = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    return [head.partition("  ")[0] for head in heads]


def command(*arguments, **options):
    """The command in another process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return run_python(["-m", "pytorch_memlab", "run", *arguments], env=environment, **options)


def python(*arguments, **options):
    """Plain Python, to compare with."""
    return run_python(arguments, **options)


# What is profiled


def test_quickstart_prints_the_tables_once_and_which_gpu_was_simulated():
    done = command("examples/quickstart.py", cwd=ROOT)

    assert done.stderr == NOTICE
    assert done.stdout == (
        "## outer\n"
        "\n"
        "active_bytes reserved_bytes line  code\n"
        "         all            all\n"
        "        peak           peak\n"
        "       0.00B          0.00B    7  def outer():\n"
        "      40.00K          2.00M    8      linear = torch.nn.Linear(100, 100).cuda()\n"
        "      80.00K          2.00M    9      linear2 = torch.nn.Linear(100, 100).cuda()\n"
        "     120.00K          2.00M   10      inner()\n"
        "\n"
        "\n"
        "## inner\n"
        "\n"
        "active_bytes reserved_bytes line  code\n"
        "         all            all\n"
        "        peak           peak\n"
        "      80.00K          2.00M    4  def inner():\n"
        "     120.00K          2.00M    5      torch.nn.Linear(100, 100).cuda()\n"
        "\n"
        "simulated GPU: NVIDIA H100 80GB HBM3 (cuda:0)\n"
    )


def test_all_functions_of_the_script_when_none_is_named(script, capsys):
    main(["run", "--all", script(SCRIPT)])

    assert profiled(capsys) == [
        "Net.__init__",
        "Net.forward",
        "make",
        "make.<locals>.kibibytes",
        "<module>",
    ]


@pytest.mark.parametrize(
    ("names", "functions"),
    [
        (["Net.forward"], ["Net.forward"]),
        (["Net"], ["Net.__init__", "Net.forward"]),
        (["script.make", "__main__:Net.__init__"], ["make", "Net.__init__"]),
        (["make.kibibytes"], ["make.<locals>.kibibytes"]),
        (["<module>"], ["<module>"]),
        (["torch.nn.functional:relu", "make"], ["make"]),
        (["torch.nn.modules.module.Module.cuda"], ["Module.cuda"]),
        (["torch.nn.Module.cuda"], ["Module.cuda"]),
    ],
)
def test_named_functions(names, functions, script, capsys):
    options = [part for name in names for part in ("-f", name)]

    main(["run", "--all", *options, script(SCRIPT)])

    assert profiled(capsys) == functions


def test_a_name_of_another_module_as_the_script_imports_it(script, capsys):
    script("def double(x):\n    return x * 2\n", "helpers.py")
    name = script("import helpers as h\nfrom helpers import double as twice\ntwice(1)\n")

    main(["run", "--all", "-f", "twice", name])
    main(["run", "--all", "-f", "h.double", name])

    assert profiled(capsys) == ["double", "double"]


def test_the_table_of_a_method(script, capsys):
    main(["run", "-f", "Net.forward", script(SCRIPT), "one", "--two"])

    assert capsys.readouterr().out == (
        f"done ['one', '--two']\n{FORWARD}\nsimulated GPU: NVIDIA H100 80GB HBM3 (cuda:0)\n"
    )


LOOP = """\
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        \"\"\"Not run at the top level.\"\"\"
        return x * 2

net = Net()
for step in range(3):
    kept = net(torch.ones(256, device="cuda"))
"""


@pytest.mark.parametrize("how", [["script.py"], ["-m", "script"]])
def test_the_top_level_is_profiled_beside_the_functions(how, script, capsys):
    script(LOOP)

    main(["run", "-c", "hits,delta", *how])

    assert capsys.readouterr().out == (
        "## Net.forward\n"
        "\n"
        "hits delta line  code\n"
        "   3 0.00B    4      def forward(self, x):\n"
        '              5          """Not run at the top level."""\n'
        "   3 3.00K    6          return x * 2\n"
        "\n"
        "\n"
        "## <module>\n"
        "\n"
        "hits delta line  code\n"
        "   1 0.00B    1  import torch\n"
        "              2\n"
        "   1 0.00B    3  class Net(torch.nn.Module):\n"
        "              4      def forward(self, x):\n"
        "              7\n"
        "   1 0.00B    8  net = Net()\n"
        "   4 0.00B    9  for step in range(3):\n"
        '   3 1.00K   10      kept = net(torch.ones(256, device="cuda"))\n'
        "\n"
        "peak 2.0 MiB reserved + 601.0 MiB context of 79.19 GiB: fits, 78.60 GiB free\n"
        "simulated GPU: NVIDIA H100 80GB HBM3 (cuda:0)\n"
    )


def test_the_top_level_is_not_profiled_beside_functions_that_were_chosen(script, capsys):
    main(["run", "-f", "Net.forward", script(LOOP)])
    assert profiled(capsys) == ["Net.forward"]

    decorated = LOOP.replace("    def forward", "    @profile\n    def forward")
    main(["run", script(f"from pytorch_memlab import profile\n{decorated}", "decorated.py")])
    assert profiled(capsys) == ["Net.forward"]
    clear_global_line_profiler()


def test_a_script_without_functions_shows_its_top_level(script, capsys):
    main(["run", "-c", "delta", script("import torch\nx = torch.ones(256).cuda()\n")])

    assert capsys.readouterr().out.splitlines()[:5] == [
        "## <module>",
        "",
        "delta line  code",
        "0.00B    1  import torch",
        "1.00K    2  x = torch.ones(256).cuda()",
    ]


DECORATED = """\
import torch
from pytorch_memlab import profile

@profile
def first():
    return torch.ones(256).cuda()

def second():
    return first()

def third():
    return second()

third()
"""


def test_decorated_functions_are_the_ones_shown_and_shown_once(script):
    done = command(script(DECORATED))

    assert done.stdout.count("## ") == 1
    assert "\n\n## first  script.py:4\n" in done.stdout


def test_decorated_and_named_functions_are_shown_together(script):
    done = command("-f", "third", "-c", "hits", script(DECORATED))

    assert [line for line in done.stdout.splitlines() if line.startswith("## ")] == [
        "## third",
        "## first",
    ]


def test_the_columns_that_decorators_ask_for(script):
    text = DECORATED.replace("@profile", '@profile(columns=["hits", "delta"])')

    assert command(script(text)).stdout.splitlines()[2] == "hits delta line  code"
    assert command("-c", "time", script(text)).stdout.splitlines()[2].split() == [
        "time",
        "line",
        "code",
    ]


SHOWS_ITS_OWN = """\
import torch
from pytorch_memlab import LineProfiler

def work():
    return torch.ones(256).cuda()

with LineProfiler(work) as prof:
    work()
"""


@pytest.mark.parametrize(
    ("ending", "options", "tables"),
    [
        ("prof.print_stats()", [], ["work"]),
        ("print(prof.display())", [], ["work"]),
        ("prof.display()", [], ["work"]),
        ("prof.print_stats()", ["-f", "work"], ["work", "work"]),
        ("prof.print_stats()", ["-c", "hits"], ["work", "work", "<module>"]),
    ],
)
def test_a_script_that_shows_its_own_tables(ending, options, tables, script, capsys):
    main(["run", *options, script(f"{SHOWS_ITS_OWN}{ending}\n")])

    assert profiled(capsys) == tables


def test_a_named_function_that_did_not_run_is_said(script, capsys):
    main(["run", "--all", "-f", "first,second", script("def first(): 0\ndef second(): 0\nfirst()")])

    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("## ")] == [
        "## first  script.py:1"
    ]
    assert "second did not run while profiled\n" in out


# Options


def test_columns(script, capsys):
    main(
        ["run", "-c", "hits,delta", "-c", "allocated_bytes.all.peak", "-f", "make", script(SCRIPT)]
    )

    head = capsys.readouterr().out.splitlines()[3:6]
    assert [line.split() for line in head] == [
        ["hits", "delta", "allocated_bytes", "line", "code"],
        ["all"],
        ["peak"],
    ]


@pytest.mark.parametrize(
    ("gpu", "total"), [("24GiB", 24 << 30), ("512MiB", 512 << 20), ("t4", None)]
)
def test_gpu(gpu, total, script, capsys):
    text = "import torch\nprint(torch.cuda.mem_get_info()[1], torch.cuda.get_device_name())\n"

    main(["run", "--gpu", gpu, script(text)])

    shown = capsys.readouterr().out.splitlines()[0]
    assert shown.startswith(f"{total} ") if total else shown.endswith("Tesla T4")


def test_count(script, capsys):
    main(["run", "--count", "3", script("import torch\nprint(torch.cuda.device_count())\n")])

    assert capsys.readouterr().out.startswith("3\n")


@pytest.mark.parametrize("ending", ["txt", "html", "json"])
def test_output_file(ending, script, capsys, tmp_path):
    main(["run", "-f", "Net.forward", "-o", f"out.{ending}", script(SCRIPT)])

    told = f"{NOTICE}memory profile written to out.{ending}\n"
    assert capsys.readouterr() == ("done []\n", told)
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


def test_output_file_stays_where_it_was_asked_for(script, tmp_path):
    name = script("import os\ndef f(): pass\nf()\nos.mkdir('deep')\nos.chdir('deep')\n")

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


def test_strict_lets_the_script_fail_where_the_simulation_knows_too_little(script):
    name = script(UNMODELLED)
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
def test_a_gpu_is_simulated_for_these_beside_a_real_one(option, script, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    main(["run", option, script("import torch\nprint(torch.cuda.get_device_name())\n")])

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
def test_which_gpu_is_simulated_and_why_is_said_before_the_script_runs(
    options, said, script, capsys
):
    name = script(
        'import sys, torch\nkept = torch.ones(1).cuda()\nprint("runs", file=sys.stderr)\n'
    )

    main(["run", "-o", "out.json", *options, name])

    out, err = capsys.readouterr()
    assert out == ""
    assert err == (f"pytorch-memlab: simulating {said}runs\nmemory profile written to out.json\n")


def test_a_script_that_leaves_the_gpu_alone_is_told_so(script, capsys):
    main(["run", script("import torch\ndef f():\n    return torch.ones(3)\nf()\n")])

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
def test_a_script_that_uses_the_gpu_is_told_nothing(text, script, capsys):
    main(["run", script(text)])

    assert capsys.readouterr().err == NOTICE


def test_nor_is_a_script_of_a_process_of_its_own(script):
    """The tables and what is said of them come before the simulation ends with the process."""
    found = command(script("import torch\nkept = torch.ones(256).cuda()\n"))

    assert found.stderr == NOTICE


TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2"}


def test_each_process_of_torchrun_writes_its_own_file_and_one_prints(
    script, capsys, monkeypatch, tmp_path
):
    name = script("import os, torch\nkept = torch.ones(256 << int(os.environ['RANK'])).cuda()\n")
    said = []
    for rank in ("1", "0"):
        for key, value in {**TORCHRUN, "RANK": rank}.items():
            monkeypatch.setenv(key, value)
        main(["run", "-c", "delta", "-o", "out.html", name])
        main(["run", "-c", "delta", "-o", "{rank}-{pid}.txt", name])
        main(["run", "-c", "delta", name])
        said.append(capsys.readouterr())

    assert said[0] == ("", "")
    assert said[1].out.startswith("## <module>\n")
    assert said[1].err == (
        f"{NOTICE}memory profile written to out.rank0.html\n"
        f"{NOTICE}memory profile written to 0-{os.getpid()}.txt\n{NOTICE}"
    )
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != name) == [
        f"0-{os.getpid()}.txt",
        f"1-{os.getpid()}.txt",
        "out.rank0.html",
        "out.rank1.html",
    ]
    assert "1.00K" in (tmp_path / f"0-{os.getpid()}.txt").read_text()
    assert "2.00K" in (tmp_path / f"1-{os.getpid()}.txt").read_text()


def test_one_simulated_rank_of_many_writes_the_file_that_was_asked_for(
    script, capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    name = script("import torch\nkept = torch.ones(256).cuda()\n")

    main(["run", "-o", "out.txt", name])
    main(["run", "-o", "out.{rank}.txt", name])
    main(["run", name])

    assert capsys.readouterr().out.startswith("peak 1.0 KiB on cuda:0")
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.3.txt", "out.txt"]


# What is wrong is said in one line, before anything runs


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.py"], "cannot open the script missing.py: No such file or directory"),
        (["."], ". is a directory, name the script in it"),
        (["-m", "no_such_module"], "there is no module named no_such_module"),
        (["-m", "json.missing"], "there is no module named json.missing"),
        (["-m", "os.path.join"], "cannot find the module os.path.join: "),
        (["--gpu", "h10", "script.py"], "h100"),
        (["--count", "0", "script.py"], "count must be a positive int, not 0"),
        (["--count", "two", "script.py"], "argument --count: invalid int value: 'two'"),
        (["-c", "active_bytes.all.peek", "script.py"], "active_bytes.all.peak"),
        (["-f", "Net.forwrd", "script.py"], "there is no function Net.forwrd; "),
        (["-f", "Net.forwrd", "script.py"], "script.py has Net.forward"),
        (["-f", "math:sqrt", "script.py"], "sqrt"),
        (["-f", "torch.nn:Nothing", "script.py"], "module 'torch.nn' has no attribute 'Nothing'"),
        (["-o", "out.pdf", "script.py"], "end it in .txt, .html, .json"),
        (["-o", "missing/out.txt", "script.py"], "cannot write missing/out.txt"),
        ([], "SCRIPT is missing: see --help"),
        (["--no-such-option", "script.py"], "unknown option --no-such-option; options of the"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, said, script, capsys):
    script(SCRIPT)

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


def test_a_file_that_cannot_be_written_in_the_end_costs_no_numbers(script, capsys, tmp_path):
    (tmp_path / "gone").mkdir()
    script("import os\ndef f():\n    os.rmdir('gone')\nf()\n")

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


# The script is what it would be

PROBE = """\
import __main__, os, pickle, sys

class Here:
    pass

def show(x):
    print(x)

if __name__ == "__main__":
    show(sys.argv)
    show(sys.path[0])
    show(sys.modules["__main__"] is __main__ and vars(__main__) is globals())
    show(type(pickle.loads(pickle.dumps(Here()))) is Here)
    show([(k, str(v).partition(" object at")[0]) for k, v in sorted(globals().items())
          if k.startswith("__") and k not in ("__spec__", "__main__")])
    show(__spec__ and (__spec__.name, __spec__.origin))
    show(sorted(set(globals())))
"""


@pytest.mark.parametrize(
    "how",
    [
        ["folder/script.py", "a", "-m", "--gpu", "b"],
        ["link.py"],
        ["-m", "folder.script", "-c", "x"],
        ["-m", "folder"],
    ],
    ids=["script", "link", "module", "package"],
)
def test_main_argv_and_path_are_as_python_has_them(how, script, tmp_path):
    (tmp_path / "folder").mkdir()
    script(PROBE, "folder/script.py")
    script(PROBE, "folder/__main__.py")
    script("", "folder/__init__.py")
    (tmp_path / "link.py").symlink_to(tmp_path / "folder" / "script.py")

    plain, ours = python(*how), command("-o", "out.txt", *how)

    assert plain.stdout.count("\n") == 7
    assert ours.stdout == plain.stdout


FAILING = """\
import torch

def outer():
    kept = torch.ones(256)
    inner(kept)

def inner(x):
    try:
        x @ torch.ones(3)
    except RuntimeError as error:
        raise ValueError("no product") from error

outer()
"""


def test_an_exception_shows_the_table_first_then_pythons_own_traceback(script):
    name = script(FAILING)
    plain, ours = python(name), command("-f", "outer", "-c", "hits", name)

    assert (plain.returncode, ours.returncode) == (1, 1)
    assert ours.stderr == NOTICE + plain.stderr
    assert ours.stdout.startswith("## outer\n")


def test_an_exception_of_a_module_and_a_hook_of_the_script(script):
    name = script(
        """\
        import sys, traceback

        def hook(kind, error, trace):
            print([frame.name for frame in traceback.extract_tb(trace)], file=sys.stderr)

        sys.excepthook = hook
        {}["key"]
        """
    )

    assert command("-m", name.removesuffix(".py")).stderr == f"{NOTICE}['<module>']\n"
    assert command(name).stderr == NOTICE + python(name).stderr


def test_out_of_memory_shows_the_table_first(script):
    done = command(
        "--gpu",
        "1GiB",
        "-c",
        "delta",
        script(
            """\
            import torch

            def fill():
                kept = torch.empty(1 << 19, dtype=torch.uint8, device="cuda")
                torch.empty(1 << 31, dtype=torch.uint8, device="cuda")

            fill()
            """
        ),
    )

    assert done.returncode == 1
    assert "512.00K    4      kept = " in done.stdout
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB." in done.stderr
    assert "pytorch_memlab" not in done.stderr


def test_syntax_errors_are_shown_as_python_shows_them(script):
    name = script("x = 1\ny = (\n")
    plain, ours = python(name), command(name)

    assert (plain.returncode, ours.returncode) == (1, 1)
    assert ours.stderr == plain.stderr
    assert ours.stdout == ""


@pytest.mark.parametrize("argument", ["", "3", "'stopped'", "None"])
def test_system_exit(argument, script):
    name = script(f"import sys\ndef f():\n    sys.exit({argument})\nf()\n")
    plain, ours = python(name), command("-c", "hits", name)

    assert ours.returncode == plain.returncode
    assert ours.stderr == NOTICE + plain.stderr
    assert ours.stdout.startswith("## f\n")


def test_keyboard_interrupt(script):
    name = script("def f():\n    raise KeyboardInterrupt\nf()\n")
    plain, ours = python(name), command("-c", "hits", name)

    assert ours.returncode == plain.returncode == -signal.SIGINT
    assert ours.stderr == NOTICE + plain.stderr
    assert ours.stdout.startswith("## f\n")


def test_threads_and_exit_handlers_of_the_script_are_profiled_before_the_table(script):
    done = command(
        "-f",
        "work",
        "-c",
        "hits",
        script(
            """\
            import atexit, os, threading, time, torch

            def work():
                torch.ones(1).cuda()

            def later():
                time.sleep(0.2)
                work()

            atexit.register(work)
            threading.Thread(target=later).start()
            work()
            if os.fork() == 0:
                raise SystemExit
            os.wait()
            """
        ),
    )

    assert done.stderr == NOTICE
    assert done.stdout.count("## ") == 1
    assert "   3    4      torch.ones(1).cuda()\n" in done.stdout


def test_everything_is_given_back(script, capsys):
    before = sys.argv, list(sys.path), sys.modules["__main__"], sys.excepthook, sys.gettrace()

    with pytest.raises(ZeroDivisionError):
        main(["run", "--all", script("import sys\nsys.path.append('x')\nsys.argv = []\n1 / 0\n")])

    assert before == (sys.argv, sys.path, sys.modules["__main__"], sys.excepthook, sys.gettrace())
    assert "## <module>" in capsys.readouterr().out


def test_a_value_that_an_option_does_not_take_is_one_line(script):
    done = command("--strict=maybe", script("pass"))
    assert done.returncode == 2
    assert done.stderr == (
        "pytorch-memlab run: error: --strict takes no value 'maybe': --help shows what it takes\n"
    )
