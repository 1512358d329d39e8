"""A notebook runs again to try remedies: its cells, without magics, with the edited one."""

from __future__ import annotations

import re

import pytest
from support.trials import run_trial

from pytorch_memlab.advice import trials
from pytorch_memlab.errors import UsageError
from pytorch_memlab.fitting.notebook_program import CellsTarget, CodeCell
from pytorch_memlab.fitting.trial import Ending
from pytorch_memlab.notebook.repeated_cells import repeated_cells
from pytorch_memlab.simulation.inspect import find_gpu

LOOP = """
net.cuda()
for step in range(60):
    loss = net(torch.randn(512, 256, device="cuda")).square().mean()
    losses.append(loss)

"""


def texts(target: CellsTarget) -> list[str]:
    return [cell.text for cell in target.cells]


def test_magics_that_show_or_simulate_are_left_out(run, shell):
    run("%load_ext pytorch_memlab\nx = 1\n")
    run("if x:\n    %time x += 1\n    %mlrun -q -c delta x += 1")
    run("%%time\n%%mlrun --quiet\nx += 1\n\n")
    run("1 / 0")
    run("x")
    run("x;")
    target = repeated_cells(shell, 2**20)
    assert texts(target) == [
        "pass\nx = 1\n",
        "if x:\n    x += 1\n    x += 1\n",
        "x += 1\n\n",
        "1 / 0\n",
        "x\n",
        "x;\n",
    ]
    assert [cell.keeps_result for cell in target.cells] == [True, True, False, True, True, False]
    if hasattr(shell.history_manager, "exceptions"):
        assert [cell.failed for cell in target.cells] == [False] * 3 + [True] + [False] * 2
    run("%unload_ext pytorch_memlab")


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("!true", "In[2] has !true, which may not run twice"),
        ("x = !true", "In[2] has !true, which may not run twice"),
        ("%pwd", "In[2] has %pwd, which may not run twice"),
        ("%%writefile made.py\nx = 1", "In[2] has %%writefile, which may not run twice"),
        ("name = input()", "In[2] calls input()"),
        ("get_ipython().user_ns", "In[2] calls get_ipython()"),
    ],
)
def test_what_may_not_run_twice_is_named(run, shell, tmp_path, monkeypatch, cell, reason):
    monkeypatch.chdir(tmp_path)
    run("x = 1")
    monkeypatch.setattr("builtins.input", lambda *_: "")
    run(cell)
    with pytest.raises(UsageError) as caught:
        repeated_cells(shell, 2**20)
    assert str(caught.value) == reason


def test_cells_run_as_they_did():
    made = "import torch\nkept = torch.ones(2**20, device='cuda')\n"
    cells = (
        CodeCell(1, "<ipython-input-1>", made, failed=False, keeps_result=True),
        # Segments of 20, 32 and 32 MiB: the last one was refused in the notebook.
        CodeCell(
            2,
            "<ipython-input-2>",
            "a = torch.ones(2**23, device='cuda')\nb = torch.ones(2**23, device='cuda')\n",
            failed=True,
            keeps_result=True,
        ),
        CodeCell(3, "<ipython-input-3>", "del a\nkept + 1\n", failed=False, keeps_result=True),
        CodeCell(4, "<ipython-input-4>", "_3 + Out[3]\n", failed=False, keeps_result=False),
    )
    trial = run_trial(CellsTarget(cells, 60 * 2**20), find_gpu("1GiB"))
    assert trial.error == ""
    assert trial.ending is Ending.FINISHED
    events = trial.history.of_device(0).events
    assert [event.size >> 20 for event in events if event.action == "alloc"] == [4, 32, 4, 4]


@pytest.mark.parametrize("first_line", ["", "%%mlrun --simulate 64MiB"])
def test_the_report_of_a_cell_has_tried_remedies(run, shell, capsys, monkeypatch, first_line):
    monkeypatch.setattr(trials, "_LEAST_SECONDS", 250.0)
    monkeypatch.setattr(trials, "MOST_SECONDS", 250.0)
    run("import torch\nfrom pytorch_memlab import *\n%load_ext pytorch_memlab")
    if not first_line:
        run("%simulate 64MiB")
    run("net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU())\nlosses = []")
    capsys.readouterr()
    run(first_line + LOOP)
    report = capsys.readouterr().err
    assert report.startswith("\npytorch_memlab: trying remedies for at most 250 s")
    advice = report.partition("what helps, the most likely cause first\n")[2]
    assert "       losses.append(loss.item())\n" in advice
    [(before, after)] = re.findall(r"tried: peak (\S+) MiB -> (\S+) MiB, runs to its end", advice)
    assert float(before) > 64 > float(after)
    run("net = losses = None\n%simulate off\n%unload_ext pytorch_memlab")


@pytest.mark.parametrize(
    ("first_line", "last_line"),
    [("%%mlrun --simulate 64MiB --no-try", ""), ("with explain_oom(no_try=True):", "")],
    ids=["mlrun", "explain_oom"],
)
def test_trials_can_be_left_out(run, capsys, first_line, last_line):
    run("import torch\nfrom pytorch_memlab import *\n%load_ext pytorch_memlab")
    if first_line.startswith("with"):
        run("%simulate 64MiB")
    run("net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU())\nlosses = []")
    capsys.readouterr()
    indent = "    " if first_line.startswith("with") else ""
    run(first_line + LOOP.rstrip().replace("\n", f"\n{indent}"))
    report = capsys.readouterr().err
    assert report.startswith("\nOut of memory on cuda:0")
    assert "what helps, the most likely cause first (not tried)\n" in report
    run("net = losses = None\n%simulate off\n%unload_ext pytorch_memlab")
