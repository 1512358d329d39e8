"""Programs for the memory reporter, run on simulated and on real GPUs alike."""

from __future__ import annotations

import gc

import torch

from pytorch_memlab.mem_reporter import MemReporter
from pytorch_memlab.reporter.memory_snapshot import MemorySnapshot, Reconciliation

CUDA = torch.device("cuda", 0)
MIB = 2**20


def line_after(marker: str) -> int:
    """Number of the line in this file below the one with a marker."""
    with open(__file__, encoding="utf-8") as source:
        return next(n for n, line in enumerate(source, 2) if line.strip() == f"# {marker}")


def reconciled(snapshot: MemorySnapshot) -> Reconciliation:
    """The reconciliation of the first GPU, after its sums were checked."""
    [record] = snapshot.on(CUDA).reconciliations
    explained = record.tensors + record.saved + record.rounding + record.workspaces
    assert explained + record.unknown == record.allocated == torch.cuda.memory_allocated(CUDA)
    assert record.allocated + record.cached == record.reserved == torch.cuda.memory_reserved(CUDA)
    return record


def check_failed_example() -> None:
    """The saved product has a row with the line that saved it, and nothing is unknown."""
    linear = torch.nn.Linear(1024, 1024).cuda()
    inp = torch.ones(512, 1024).cuda()
    reporter = MemReporter(linear)
    with reporter.record_lines():
        # the line that saves
        out = linear(inp * (inp + 2)).mean()
    snapshot = reporter.snapshot()
    line = line_after("the line that saves")
    rows = {row.name: row for row in snapshot.on(CUDA).rows}

    assert list(rows) == [
        "weight",
        "bias",
        "inp",
        "out",
        f"saved by AddmmBackward0 (reporter_programs.py:{line})",
    ]
    saved = rows[f"saved by AddmmBackward0 (reporter_programs.py:{line})"]
    assert (saved.nbytes, saved.size, saved.category, saved.saved_by, saved.line) == (
        2 * MIB,
        (512, 1024),
        "activations saved for backward",
        "AddmmBackward0",
        (__file__, line),
    )
    record = reconciled(snapshot)
    assert (record.tensors, record.saved, record.unknown) == (6 * MIB + 4096 + 4, 2 * MIB, 0)
    del inp, out


def check_training_has_nothing_unknown() -> None:
    """Every byte of a program that trains is explained, at three moments of a step."""
    torch.cuda.empty_cache()
    unsplit = torch.empty(13 * MIB + MIB // 2, dtype=torch.uint8, device="cuda")
    model = torch.nn.Sequential(
        torch.nn.Linear(300, 1000),
        torch.nn.BatchNorm1d(1000),
        torch.nn.ReLU(),
        torch.nn.LayerNorm(1000),
        torch.nn.Linear(1000, 7),
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    inputs, targets = torch.ones(90, 300).cuda(), torch.zeros(90, dtype=torch.int64).cuda()
    reporter = MemReporter(model)
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        waiting = reconciled(reporter.snapshot())
        loss.backward()
        computed = reconciled(reporter.snapshot())
        optimizer.step()
        stepped = reconciled(reporter.snapshot())
        assert [each.unknown for each in (waiting, computed, stepped)] == [0, 0, 0]
        assert waiting.saved > 90 * 1000 * 4 * 3
        assert computed.saved == stepped.saved == 0
        assert waiting.rounding >= MIB // 2
    totals = reporter.snapshot().totals(CUDA)
    held = sum(p.numel() for p in model.parameters()) * 4
    assert totals == {
        "parameters": held,
        "gradients": held,
        "optimizer state": 2 * held,
        "buffers": 2 * 1000 * 4 + 8,
        "activations saved for backward": 0,
        "inputs and other tensors": inputs.nbytes + targets.nbytes + unsplit.nbytes + 4,
    }


def check_nothing_is_allocated_or_kept() -> None:
    """A report takes no memory of the GPU, keeps nothing alive and makes no cycle."""
    model = torch.nn.Linear(8, 8).cuda()
    kept = [model(torch.ones(2, 8, device="cuda")) for _ in range(3)]
    reporter = MemReporter(model)
    str(reporter.snapshot())
    gc.collect()
    counter = "allocation.all.allocated"
    before = torch.cuda.memory_stats()[counter]
    gc.collect()
    text, page = str(reporter.snapshot()), reporter._repr_html_()
    assert gc.collect() == 0
    assert torch.cuda.memory_stats()[counter] == before
    allocated = torch.cuda.memory_allocated()
    kept.clear()
    assert "kept[0]" in text
    assert "kept[0]" in page
    assert torch.cuda.memory_allocated() < allocated


def check_memory_that_is_no_tensor_is_unknown() -> None:
    """Memory that only a storage holds is a number."""
    kept = torch.ones(1024, device="cuda")
    hidden = torch.empty(3000, dtype=torch.uint8, device="cuda").untyped_storage()
    record = reconciled(MemReporter().snapshot())
    assert (record.tensors, record.unknown, record.rounding) == (4096, 3000, 72)
    del kept, hidden


PROGRAMS = (
    check_failed_example,
    check_training_has_nothing_unknown,
    check_nothing_is_allocated_or_kept,
    check_memory_that_is_no_tensor_is_unknown,
)
