"""Values that shapes alone do not have: the lines that read them say so."""

from __future__ import annotations

import torch
from support.computed_or_dry import computed_or_dry

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab.cli.main import main
from pytorch_memlab.records import OF_VALUES, Approximation, ApproximationKind
from pytorch_memlab.render.notes import texts
from pytorch_memlab.simulation.machine.tensor_values import Bound
from pytorch_memlab.simulation.ops.core.registry import definitions

SCRIPT = """\
import torch


def loss_of(x):
    return x.sum()


def work():
    x = torch.zeros(2**19, 2**19, device="cuda")
    if loss_of(x).item() > 0:
        x = x + 1
    for _ in range(2):
        if loss_of(x) > 0:
            break
    return x[0].tolist()


work()
"""

TABLES = """\
## loss_of

active_bytes reserved_bytes line  code
         all            all
        peak           peak
       1.00T          1.00T    4  def loss_of(x):
       1.00T          1.00T    5      return x.sum()


## work

active_bytes reserved_bytes line  code
         all            all
        peak           peak
       0.00B          0.00B    8  def work():
       1.00T          1.00T    9      x = torch.zeros(2**19, 2**19, device="cuda")
       1.00T          1.00T   10*     if loss_of(x).item() > 0:
                              11          x = x + 1
       1.00T          1.00T   12      for _ in range(2):
       1.00T          1.00T   13*         if loss_of(x) > 0:
                              14              break
       1.00T          1.00T   15*     return x[0].tolist()

line 10: dry run: Tensor.item (once, assumed 0): a real run may branch differently
line 13: dry run: Tensor.item (2 times, assumed 0): a real run may branch differently
line 15: dry run: Tensor.tolist (once, assumed 0): a real run may branch differently

peak 1024.00 GiB reserved of 8192.00 GiB: fits, 7168.00 GiB free
simulated GPU: Simulated GPU (8192.00 GiB) (cuda:0)
dry run: Tensor.item at {script}:13 (2 times, assumed 0), Tensor.item at {script}:10 (once, \
assumed 0), Tensor.tolist at {script}:15 (once, assumed 0): a real run may branch differently
"""


def read(name, calls, assumption, filename, line):
    return Approximation(
        ApproximationKind.ASSUMED, name, calls, 0, assumption, f"{filename}:{line}"
    )


def approximations_of(profiler, function):
    """Lines of a function, counted from its ``def``, with the reads in them: name and number."""
    first = function.__code__.co_firstlineno
    [table] = profiler.display(function).report.tables
    return {
        line - first: [
            (approximation.name, approximation.calls)
            for approximation in approximations
            if approximation.kind in OF_VALUES
        ]
        for line, approximations in table.approximations.items()
    }


def test_whole_tables_of_a_dry_run(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    columns = "active_bytes.all.peak,reserved_bytes.all.peak"
    options = ["--gpu", "8TiB", "-f", "loss_of", "-f", "work", "-c", columns]
    main(["run", "--dry-run", *options, str(script)])
    assert capsys.readouterr().out == TABLES.replace("{script}", str(script))


def test_a_line_that_allocates_nothing_is_marked_too():
    def work():
        x = torch.zeros(5000, device="cuda")
        number = x[0].item()
        kept = number
        x[0].item()
        return kept

    with simulate("24GiB", compute=False), LineProfiler(work) as profiler:
        work()
    assert approximations_of(profiler, work) == {2: [("Tensor.item", 1)], 4: [("Tensor.item", 1)]}


def test_a_line_has_the_reads_of_what_it_calls_with_their_places():
    def inner(x):
        return x.tolist()

    def work():
        x = torch.zeros(5000, device="cuda")
        inner(x)
        return inner(x), x[x > 0]

    with simulate("24GiB", compute=False) as machine, LineProfiler(work, inner) as profiler:
        work()
    assert approximations_of(profiler, inner) == {1: [("Tensor.tolist", 2)]}
    assert approximations_of(profiler, work) == {
        2: [("Tensor.tolist", 1)],
        3: [("Tensor.tolist", 1), ("mask as an index", 1)],
    }
    line = inner.__code__.co_firstlineno + 1
    places = {(read.filename, read.line): read.count for read in machine.data_dependent_reads}
    assert places == {(__file__, line): 2, (__file__, line + 5): 1}
    [table] = profiler.display(work).report.tables
    assert table.approximations[line + 5][0] == read("Tensor.tolist", 1, "0", __file__, line)


def test_reads_before_the_gpu_is_used_are_at_their_lines():
    def inner(x):
        x.sum().item()
        return x.cuda()

    def work():
        x = torch.zeros(5000).uniform_()
        x.sum().item()
        inner(x)
        x.sum().item()

    with simulate("24GiB", compute=False), LineProfiler(work, inner) as profiler:
        torch.zeros(5000).uniform_().sum().item()
        work()
    assert approximations_of(profiler, inner) == {1: [("Tensor.item", 1)]}
    assert approximations_of(profiler, work) == {
        2: [("Tensor.item", 1)],
        3: [("Tensor.item", 1)],
        4: [("Tensor.item", 1)],
    }


def test_reads_without_any_use_of_a_gpu_are_marked():
    def work():
        return torch.zeros(5000).uniform_().sum().item()

    with simulate("24GiB", compute=False), LineProfiler(work) as profiler:
        work()
        report = profiler.display().report
        assert approximations_of(profiler, work) == {1: [("Tensor.item", 1)]}
    assert "Tensor.item at" in texts(report.notes)[-1]


def test_every_gpu_rests_on_a_read_and_the_summary_counts_it_once():
    def work():
        x = torch.zeros(5000, device="cuda:0")
        y = torch.zeros(5000, device="cuda:1")
        return x.sum().item(), y

    with simulate("24GiB", count=2, compute=False), LineProfiler(work) as profiler:
        work()
    report = profiler.display().report
    line = work.__code__.co_firstlineno + 3
    assert [list(table.approximations) for table in report.tables] == [[line], [line]]
    assert texts(report.notes)[-1] == (
        f"dry run: Tensor.item at {__file__}:{line} (once, assumed 0): a real run may branch "
        "differently"
    )


@computed_or_dry
def test_values_that_are_there_are_no_gap(compute):
    def work():
        x = torch.arange(10, device="cuda")
        return x.sum().item(), x.tolist(), x[x > 3]

    with simulate("24GiB", compute=compute), LineProfiler(work) as profiler:
        work()
    assert not any(approximations_of(profiler, work).values())
    assert not any("dry run" in note for note in texts(profiler.display().report.notes))


def test_every_rule_has_its_words_and_every_size_says_what_it_is_to_the_true_one():
    for name, known in definitions().items():
        rule = known.data_dependence
        if rule is not None:
            named = rule.size or rule
            assert named.called, name
            assert named.assumption, name
            assert rule.size is None or rule.size.bound not in (Bound.VALUE, Bound.GIVEN), name
