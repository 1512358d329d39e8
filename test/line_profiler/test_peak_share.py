"""The exact share of a simulated GPU's peak, to the byte."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab.records import Approximation, ApproximationKind, PeakShare
from pytorch_memlab.render.notes import share, texts

KIB, MIB = 2**10, 2**20


def shares(machine):
    """Active bytes at the peak, and the estimates among them, of each GPU."""
    return [gpu.peak_share() for gpu in machine.gpus]


def test_exact_and_estimated_bytes_add_up_to_the_peak():
    with simulate("a100", compute=False) as machine:
        x = torch.zeros(MIB, device="cuda")
        total = x.cumsum(0)
        (taken,) = (count.nbytes for count in machine.approximations[0].estimated.values())
        block = -(-taken // 512) * 512
        assert block > taken
        assert shares(machine) == [(8 * MIB + block, block)]
        assert torch.cuda.max_memory_allocated() == 8 * MIB + block
        del x, total
        kept = torch.zeros(4 * MIB, device="cuda")
        assert shares(machine) == [(kept.nbytes, 0)]


def test_a_smaller_peak_with_estimates_does_not_count():
    with simulate("a100", compute=False) as machine:
        x = torch.zeros(MIB, device="cuda")
        y = torch.zeros(8 * MIB, device="cuda")
        del y
        x.cumsum(0)
        assert shares(machine) == [(36 * MIB, 0)]


def test_a_reset_of_the_programs_peak_does_not_move_it():
    with simulate("a100", compute=False) as machine:
        torch.zeros(MIB, device="cuda").cumsum(0)
        before = shares(machine)
        torch.cuda.reset_peak_memory_stats()
        torch.zeros(1, device="cuda")
        assert shares(machine) == before


def test_a_workspace_that_no_recording_shows_is_an_estimate_while_it_is_kept():
    workspace = 32 * MIB
    for gpu, estimated in (("a100", 0), ("h100", 0), ("b200", workspace)):
        with simulate(gpu, compute=False) as machine:
            x = torch.zeros(2, 8, 8, device="cuda")
            product = x @ x
            active = torch.cuda.memory_allocated()
            assert shares(machine) == [(active, estimated)]
            more = torch.zeros(MIB, device="cuda")
            assert shares(machine) == [(active + 4 * MIB, estimated)]
            ops = {"aten.bmm.default"} if estimated else set()
            assert set(machine.approximations[0].estimated) == ops
            del product, more


def test_a_configured_workspace_is_an_estimate(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:1")
    with simulate("a100", compute=False) as machine:
        x = torch.zeros(2, 8, 8, device="cuda")
        x @ x
        assert shares(machine)[0][1] == 4 * MIB


def test_a_result_of_estimated_size_is_an_estimate_until_it_dies():
    with simulate("a100", compute=False) as machine:
        network = nn.LSTM(64, 64).cuda()
        output, _ = network(torch.zeros(32, 16, 64, device="cuda"))
        kept = torch.zeros(16 * MIB, device="cuda")
        active, estimated = shares(machine)[0]
        assert active == torch.cuda.memory_allocated()
        assert estimated == 32 * 16 * 64 * 5 * 4  # gates, and the cell's state
        del output, _, kept
        more = torch.zeros(32 * MIB, device="cuda")
        assert shares(machine) == [(torch.cuda.memory_allocated(), 0)]
        del more


def test_masks_as_indices_are_estimates():
    with simulate("a100") as machine:
        x = torch.arange(1000.0, device="cuda")
        x[x > 500]
        assert set(machine.approximations[0].estimated) == {"aten.index.Tensor"}


def test_each_gpu_has_its_own():
    with simulate("a100", 2, compute=False) as machine:
        torch.zeros(MIB, device="cuda:1").cumsum(0)
        exact, estimated = shares(machine)
    assert exact == (0, 0)
    assert estimated[1] > 0


def work():
    x = torch.zeros(1, 3, 64, 64, device="cuda")
    y = functional.conv2d(x, torch.zeros(4, 3, 3, 3, device="cuda"))
    return y.flatten().cumsum(0)


@pytest.mark.knows_simulation("the note that names the simulated GPU")
def test_the_summary_gives_it_below_the_tables():
    with simulate("a100", compute=False) as machine, LineProfiler(work) as profiler:
        work()
    active, estimated = shares(machine)[0]
    exact = (active - estimated) * 1000 // active / 10
    assert 90 < exact < 100
    assert texts(profiler.display().report.notes)[-1] == (
        f"cuda:0: {exact}% of the peak of {active / KIB:.1f} KiB is exact, {100 - exact:.1f}% "
        f"({estimated / KIB:.1f} KiB) estimated, cuDNN workspaces not counted (at most 2.6 MiB "
        "with them)"
    )


@pytest.mark.knows_simulation("the note that names the simulated GPU")
def test_a_program_without_estimates_says_nothing_of_it():
    def exact():
        torch.zeros(8, device="cuda").relu()

    with simulate("a100"), LineProfiler(exact) as profiler:
        exact()
    assert len(texts(profiler.display().report.notes)) == 1


@pytest.mark.knows_simulation("the note that names the simulated GPU")
def test_a_peak_from_before_is_not_that_of_the_profile():
    def small():
        torch.zeros(8, device="cuda").cumsum(0)

    with simulate("a100"):
        torch.zeros(MIB, device="cuda").cumsum(0)
        with LineProfiler(small) as profiler:
            small()
        notes = texts(profiler.display().report.notes)
        assert [note.partition(":")[0] for note in notes] == ["simulated GPU", "estimated"]
        with profiler:
            torch.zeros(4 * MIB, device="cuda")
        assert texts(profiler.display().report.notes)[-1].startswith("cuda:0: no estimate is part")


UNKNOWN = Approximation(ApproximationKind.UNCOUNTED, "convolution", 2, unknown="cuDNN workspaces")
OTHERS = tuple(Approximation(ApproximationKind.UNMODELLED, f"op{n}", 1, n) for n in range(5))
GUESS = Approximation(ApproximationKind.ESTIMATED, "sort", 1, 512)
READ = Approximation(ApproximationKind.ASSUMED, "Tensor.item", 1, assumption="0", place="a.py:1")


@pytest.mark.parametrize(
    ("estimated", "approximations", "expected"),
    [
        (0, (GUESS,), "no estimate is part of the peak of 1000.0 KiB"),
        (1, (GUESS,), "99.9% of the peak of 1000.0 KiB is exact, 0.1% (1 B) estimated"),
        (
            13 * KIB,
            (GUESS, UNKNOWN),
            (
                "98.7% of the peak of 1000.0 KiB is exact, 1.3% (13.0 KiB) estimated, "
                "cuDNN workspaces not counted"
            ),
        ),
        (
            0,
            (UNKNOWN, *OTHERS, READ),
            (
                "no estimate is part of the peak of 1000.0 KiB, cuDNN workspaces, kernel memory of "
                "op4, op3, op2 and 2 more ops not counted, if the assumed values hold"
            ),
        ),
    ],
)
def test_its_words(estimated, approximations, expected):
    peak = PeakShare("cuda:0", 1000 * KIB, estimated, approximations)
    assert not peak.is_exact
    assert share(peak) == f"cuda:0: {expected}"


@pytest.mark.parametrize("approximations", [(), (READ,)])
def test_a_peak_of_known_blocks_is_exact_whatever_values_were_assumed(approximations):
    assert PeakShare("cuda:0", 1000 * KIB, 0, approximations).is_exact
