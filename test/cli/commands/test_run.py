"""Functions and lines that ``pytorch-memlab run`` profiles, and the tables that it shows."""

from __future__ import annotations

import pytest
from support.run_command import FORWARD, NOTICE, ROOT, SCRIPT, command, profiled

from pytorch_memlab.cli.main import main


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


def test_all_functions_of_the_script_when_none_is_named(write, capsys):
    main(["run", "--all", write(SCRIPT)])

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
def test_named_functions(names, functions, write, capsys):
    options = [part for name in names for part in ("-f", name)]

    main(["run", "--all", *options, write(SCRIPT)])

    assert profiled(capsys) == functions


def test_a_name_of_another_module_as_the_script_imports_it(write, capsys):
    write("def double(x):\n    return x * 2\n", "helpers.py")
    name = write("import helpers as h\nfrom helpers import double as twice\ntwice(1)\n")

    main(["run", "--all", "-f", "twice", name])
    main(["run", "--all", "-f", "h.double", name])

    assert profiled(capsys) == ["double", "double"]


@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_the_table_of_a_method(write, capsys):
    main(["run", "-f", "Net.forward", write(SCRIPT), "one", "--two"])

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
@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_the_top_level_is_profiled_beside_the_functions(how, write, capsys):
    write(LOOP)

    main(["run", "-c", "hits,delta", *how])

    assert capsys.readouterr().out == (
        "## Net.forward\n"
        "\n"
        "hits delta line  code\n"
        "   3 0.00B    4      def forward(self, x):\n"
        '              5          """Not run at the top level."""\n'
        "   3 1.00K    6          return x * 2\n"
        "\n"
        "\n"
        "## <module>\n"
        "\n"
        "hits   delta line  code\n"
        "   1   0.00B    1  import torch\n"
        "                2\n"
        "   1   0.00B    3  class Net(torch.nn.Module):\n"
        "                4      def forward(self, x):\n"
        "                7\n"
        "   1   0.00B    8  net = Net()\n"
        "   4   0.00B    9  for step in range(3):\n"
        '   3 341.00B   10      kept = net(torch.ones(256, device="cuda"))\n'  # the mean of a hit
        "\n"
        "peak 2.0 MiB reserved + 601.0 MiB context of 79.19 GiB: fits, 78.60 GiB free\n"
        "simulated GPU: NVIDIA H100 80GB HBM3 (cuda:0)\n"
    )


def test_the_top_level_is_not_profiled_beside_functions_that_were_chosen(write, capsys):
    main(["run", "-f", "Net.forward", write(LOOP)])
    assert profiled(capsys) == ["Net.forward"]

    decorated = LOOP.replace("    def forward", "    @profile\n    def forward")
    main(["run", write(f"from pytorch_memlab import profile\n{decorated}", "decorated.py")])
    assert profiled(capsys) == ["Net.forward"]


def test_a_script_without_functions_shows_its_top_level(write, capsys):
    main(["run", "-c", "delta", write("import torch\nx = torch.ones(256).cuda()\n")])

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


def test_decorated_functions_are_the_ones_shown_and_shown_once(write):
    done = command(write(DECORATED))

    assert done.stdout.count("## ") == 1
    assert "\n\n## first  script.py:4\n" in done.stdout


def test_decorated_and_named_functions_are_shown_together(write):
    done = command("-f", "third", "-c", "hits", write(DECORATED))

    assert [line for line in done.stdout.splitlines() if line.startswith("## ")] == [
        "## third",
        "## first",
    ]


def test_the_columns_that_decorators_ask_for(write):
    text = DECORATED.replace("@profile", '@profile(columns=["hits", "delta"])')

    assert command(write(text)).stdout.splitlines()[2] == "hits delta line  code"
    assert command("-c", "time", write(text)).stdout.splitlines()[2].split() == [
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
def test_a_script_that_shows_its_own_tables(ending, options, tables, write, capsys):
    main(["run", *options, write(f"{SHOWS_ITS_OWN}{ending}\n")])

    assert profiled(capsys) == tables


def test_a_named_function_that_did_not_run_is_said(write, capsys):
    main(["run", "--all", "-f", "first,second", write("def first(): 0\ndef second(): 0\nfirst()")])

    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("## ")] == [
        "## first  script.py:1"
    ]
    assert "second did not run while profiled\n" in out
