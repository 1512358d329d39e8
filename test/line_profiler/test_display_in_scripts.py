"""``display()`` shows its table in a script too, once, unless the program takes the result."""

from __future__ import annotations

import pytest
import torch

import pytorch_memlab
from pytorch_memlab import LineProfiler, clear_global_line_profiler, profile, simulate


def work():
    return torch.ones(256, device="cuda")


@pytest.fixture
def profiler():
    with simulate("24GiB"), LineProfiler(work) as prof:
        work()
    return prof


TEXT = """\
## work

hits line  code
   1   12  def work():
   1   13      return torch.ones(256, device="cuda")

simulated GPU: Simulated GPU (24.00 GiB) (cuda:0)
"""


@pytest.mark.knows_simulation("the note that names the simulated GPU")
@pytest.mark.parametrize(
    ("statement", "times"),
    [
        ("prof.display(columns='hits')", 1),
        ("for i in range(2): prof.display(columns='hits')", 2),
        ("prof.display(None, 'hits'); x = 1", 1),
        ("print(prof.display(columns='hits'))", 1),
    ],
)
def test_a_table_is_shown_where_nothing_gets_it(profiler, capsys, statement, times):
    exec(compile(statement, "<script>", "exec"), {"prof": profiler})
    assert capsys.readouterr().out == TEXT * times


@pytest.mark.parametrize(
    "statement",
    [
        "x = prof.display(columns='hits')",
        "x = [prof.display(columns='hits')]",
        "str(prof.display(columns='hits'))",
        "prof.display(columns='hits').report",
    ],
)
def test_a_table_that_something_gets_is_not_shown(profiler, capsys, statement):
    exec(compile(statement, "<script>", "exec"), {"prof": profiler})
    assert capsys.readouterr().out == ""


@pytest.mark.knows_simulation("the note that names the simulated GPU")
def test_a_prompt_shows_it_by_itself(profiler, capsys):
    exec(compile("prof.display(columns='hits')", "<prompt>", "single"), {"prof": profiler})
    assert capsys.readouterr().out == TEXT


@pytest.mark.knows_simulation("the note that names the simulated GPU")
def test_the_decorators_table_is_shown_alike(capsys):
    with simulate("24GiB"):
        profile(work)()
        try:
            pytorch_memlab.display(columns="hits")
            kept = pytorch_memlab.display(columns="hits")
        finally:
            clear_global_line_profiler()
    assert kept.report.tables
    assert capsys.readouterr().out == TEXT
