"""Ops without an entry in the kernels' table are named, and an error where one asks for that."""

from __future__ import annotations

import pytest
import torch

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab.errors import UnmodelledOpError

GPU_NOTE = "simulated GPU: Simulated GPU (24.00 GiB) (cuda:0)"

QR = "linalg_qr (2 calls, 1.00K of outputs)"
EIGH = "_linalg_eigh (1 call, 288.00B of outputs)"


def notes_of(work, **options):
    with simulate("24GiB", **options), LineProfiler(work) as profiler:
        work()
    return profiler.display().report.notes


@pytest.mark.parametrize("compute", [True, False])
def test_ops_without_an_entry_are_named_largest_first(compute):
    def work():
        square = torch.zeros(8, 8, device="cuda")
        torch.linalg.qr(square)
        torch.linalg.qr(square)
        torch.linalg.eigvalsh(square)

    assert notes_of(work, compute=compute) == (
        GPU_NOTE,
        f"not modelled: {QR}, {EIGH}: kernels' own memory of these is not counted",
    )


def test_copies_and_elementwise_ops_need_no_entry():
    def work():
        x = torch.randn(64, 64).cuda()
        (x.relu() + 1).mul_(2).clone().cpu()

    assert notes_of(work) == (GPU_NOTE,)


def test_more_than_five_are_counted():
    from pytorch_memlab.line_profiler.line_profiler import _unmodelled_notes
    from pytorch_memlab.records import UnmodelledOp

    ops = [UnmodelledOp(f"op{n}", n, 1024 * n) for n in (7, 6, 5, 4, 3, 2, 1)]
    [note] = _unmodelled_notes(ops)
    assert note == (
        "not modelled: op7 (7 calls, 7.00K of outputs), op6 (6 calls, 6.00K of outputs), "
        "op5 (5 calls, 5.00K of outputs), op4 (4 calls, 4.00K of outputs), "
        "op3 (3 calls, 3.00K of outputs) and 2 more: kernels' own memory of these is not counted"
    )


@pytest.mark.parametrize("compute", [True, False])
def test_strict_makes_the_first_of_them_an_error(compute):
    with simulate("24GiB", compute=compute, strict=True) as machine:
        square = torch.zeros(8, 8, device="cuda")
        _ = (square @ square).relu().sum()
        with pytest.raises(UnmodelledOpError, match=r"^aten\.linalg_qr\.default has no entry"):
            torch.linalg.qr(square)
        assert machine.unmodelled == {}
        torch.linalg.qr(square.cpu())


def test_a_decorated_function_is_as_strict():
    @simulate("24GiB", strict=True)
    def work():
        torch.linalg.qr(torch.zeros(8, 8, device="cuda"))

    for _ in range(2):
        with pytest.raises(UnmodelledOpError):
            work()
