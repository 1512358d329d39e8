"""Objects as a prompt or a cell shows them: whole lines."""

from __future__ import annotations

import os
from html import escape

import pytest
import torch

import pytorch_memlab
from pytorch_memlab import (
    GPU,
    Courtesy,
    IPyGPULogger,
    LineProfiler,
    MemReporter,
    MemWatcher,
    explain_oom,
    simulate,
)
from pytorch_memlab.history.holders import ModuleNode
from pytorch_memlab.history.timeline import timeline_of
from pytorch_memlab.profiles.cells import CellReading, Usage
from pytorch_memlab.render.cell_reports import last_cell

HERE = os.path.basename(__file__)


def one():
    return torch.ones(256, device="cuda")


def two():
    return one()


@pytest.fixture
def gpu():
    with simulate("24GiB") as machine:
        yield machine


def test_a_line_profiler_and_its_records(gpu):
    profiler = LineProfiler()
    assert repr(profiler) == "<LineProfiler of no function: 0 lines recorded, off>"
    profiler = LineProfiler(one, two)
    with profiler:
        assert repr(profiler) == "<LineProfiler of one, two: 0 lines recorded, on>"
        one()
        recorded = "one, two: 2 lines recorded, peak 1.0 KiB in one"
        assert repr(profiler) == f"<LineProfiler of {recorded}, on>"
    two()
    assert repr(profiler) == f"<LineProfiler of {recorded}, off>"
    assert repr(profiler.records()) == f"<LineRecords of {recorded}>"
    shown = profiler.display()._repr_html_()
    assert profiler._repr_html_() == profiler.records()._repr_html_() == shown


def test_a_profiler_that_recorded_nothing_shows_why(gpu):
    reason = "No data collected: one did not run while profiled"
    assert f">{reason}</p>" in LineProfiler(one)._repr_html_()


def test_a_saved_profile_and_what_it_holds(gpu, tmp_path):
    with LineProfiler(one, history=True) as profiler:
        kept = one()
    profiler.save(tmp_path / "one.json")
    saved = pytorch_memlab.load(tmp_path / "one.json")
    program = os.path.basename(saved.recorded().runs[0].program) or "a notebook"
    summary = f"{program}: 1 function, 2 lines, peak 1.0 KiB on cuda:0"
    assert repr(saved) == f"<SavedProfile of {summary}>"
    assert repr(saved.recorded()) == f"<RecordedProfile of {summary}>"
    assert saved._repr_html_() == profiler._repr_html_()

    history = profiler.history()
    assert repr(history) == "<AllocationHistory of cuda:0 (2 events)>"
    assert repr(history.devices[0]) == (
        "<DeviceHistory of cuda:0: 2 events, 2.0 MiB reserved at the end>"
    )
    assert repr(timeline_of(history)) == (
        "<Timeline of cuda:0: 2 events, peak 1.0 KiB, bands of category>"
    )
    holders = profiler.peak_holders()
    line = one.__code__.co_firstlineno + 1
    assert repr(holders) == (
        f"<PeakHolders of cuda:0: 1.0 KiB in 1 block; most by {HERE}:{line} (1.0 KiB) and as "
        "inputs and other tensors (1.0 KiB)>"
    )
    assert repr(holders.peak) == "<Peak of cuda:0: 1.0 KiB in 1 block>"
    del kept


def test_a_tree_of_modules():
    attention = ModuleNode("attn", "GPT.attn", 2**20, 2**20)
    tree = ModuleNode("GPT", "GPT", 2**21, 3 * 2**20, (attention,))
    assert repr(tree) == "<ModuleNode GPT: 2.0 MiB itself, 3.0 MiB in all, with attn>"


def test_courtesy(gpu):
    courtesy = Courtesy()
    assert repr(courtesy) == "<Courtesy: nothing is lent>"
    kept = one()
    courtesy.yield_memory()
    assert repr(courtesy) == "<Courtesy: 1.0 KiB in 1 storage lent>"
    courtesy.restore()
    assert repr(courtesy) == "<Courtesy: nothing is lent>"
    assert kept.is_cuda


def test_a_simulation():
    simulation = simulate("h100", 2)
    assert repr(simulation) == "<simulate 2 x NVIDIA H100 80GB HBM3: off>"
    with simulation as machine:
        kept = one()
        assert repr(simulation) == "<simulate 2 x NVIDIA H100 80GB HBM3: on>"
        assert repr(machine) == (
            "<Machine with cuda:0 (NVIDIA H100 80GB HBM3, 1.0 KiB in use), "
            "cuda:1 (NVIDIA H100 80GB HBM3, 0 B in use)>"
        )
        del kept


def test_a_gpu():
    gpu = GPU("Quadro RTX 5000", "16GiB", compute_capability=(7, 5), multiprocessors=48)
    assert repr(gpu) == (
        "<GPU Quadro RTX 5000: 16.00 GiB, compute capability 7.5, 48 multiprocessors>"
    )


def test_a_reporter_its_snapshots_and_differences(gpu):
    model = torch.nn.Linear(2, 2)
    assert repr(MemReporter(model)) == "<MemReporter of Linear>"
    assert repr(MemReporter()) == "<MemReporter of all tensors>"
    reporter = MemReporter()
    before = reporter.snapshot().on("cuda")
    batch = one()
    after = reporter.snapshot().on("cuda")
    assert repr(before) == "<MemorySnapshot: no tensors>"
    assert repr(after) == "<MemorySnapshot: 1.0 KiB in 1 tensor on cuda:0>"
    assert repr(reporter.diff(before, after)) == "<Difference: 1 came, in all +1.0 KiB>"
    assert repr(reporter.diff(after, before)) == "<Difference: 1 went, in all -1.0 KiB>"
    assert repr(reporter.diff(after, after)) == "<Difference: no change>"
    del model, batch


def test_a_reporter_and_a_watched_loop(gpu):
    watch = MemReporter().leaks(3)
    assert repr(watch) == "<LeakWatch: 0 iterations done: 3 are needed to tell a leak>"
    losses = []
    for _ in watch:
        losses.append(one())  # noqa: PERF401
    assert repr(watch) == "<LeakWatch: losses[*] grew by 1.0 KiB with each of 3 iterations>"
    assert "\n" in str(watch)


def test_an_explained_error(gpu):
    explained = explain_oom()
    assert repr(explained).startswith("<explain_oom: there was no error yet; explain_oom() is for")
    with explained:
        assert repr(explained) == "<explain_oom: no such error>"
    with pytest.raises(torch.OutOfMemoryError), explained:
        torch.empty(2**35, device="cuda")
    assert repr(explained).startswith(f"<explain_oom: Out of memory on cuda:0 at {HERE}:")
    assert "\n" not in repr(explained)
    shown = explained._repr_html_()
    assert escape(explained.report.strip("\n")) in shown
    assert explain_oom()._repr_html_() is None


def test_watchers_of_cells():
    assert repr(MemWatcher()) == "<MemWatcher: off>"
    assert repr(IPyGPULogger()) == "<IPyGPULogger(compact=False, gc_collect=True): off>"
    reading = CellReading(3, 0.5, Usage(2**20, 0, 0), Usage(-(2**30), 0, 0))
    assert last_cell(reading) == (
        ", In [3] took +1.0 MiB on the host and -1.00 GiB on the GPU in 0.500 s"
    )
