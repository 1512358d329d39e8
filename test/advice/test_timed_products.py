"""The compiler runs out of memory while it times a product that it may pad."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from pytorch_memlab import explain_oom, simulate

NAMED = "Inductor takes "
MIB = 2**20
ROWS, INNER, COLUMNS = 1024, 1024, 16001


def matrices() -> tuple[torch.Tensor, torch.Tensor]:
    one = torch.zeros(ROWS, INNER, device="cuda", dtype=torch.bfloat16)
    return one, torch.zeros(INNER, COLUMNS, device="cuda", dtype=torch.bfloat16)


@pytest.mark.new_process("torch.compile keeps its frame evaluator once a compiler has failed")
def test_padding_is_turned_off_where_timing_a_product_does_not_fit() -> None:
    # Copies of both matrices, the second in a segment of whole 2 MiB, and the product, for which
    # there is no room.
    segment = -(-INNER * COLUMNS // MIB) * 2 * MIB
    size = 2 * ROWS * INNER + segment + 2 * ROWS * COLUMNS
    with simulate("100MiB", compute=False, context=0):
        tensors = matrices()
        with (
            pytest.raises(BackendCompilerFailed),
            explain_oom(no_try=True) as explained,
        ):
            torch.compile(lambda one, other: one @ other)(*tensors)
        report = (explained.report or "").splitlines()
        freed = f"{size / MIB:.1f} MiB"
        heading = f"  1. {NAMED}{freed} to time a product that it may pad (frees at least"
        first = next(number for number, line in enumerate(report) if line.startswith("  1. "))
        assert report[first : first + 4] == [
            heading,
            f"     {freed})",
            "       import torch._inductor.config",
            "       torch._inductor.config.shape_padding = False  # before the first compiled call",
        ]
        del explained
        with torch._inductor.config.patch(shape_padding=False):
            product = torch.compile(lambda one, other: one @ other)(*tensors)
        assert product.shape == (ROWS, COLUMNS)


def test_a_product_that_is_too_large_itself_is_no_fault_of_padding() -> None:
    with simulate("60MiB", compute=False, context=0), explain_oom(no_try=True) as explained:
        one, other = matrices()
        with pytest.raises(torch.OutOfMemoryError):
            torch.compile(lambda one, other: one @ other)(one, other[:, :16000].contiguous())
    assert NAMED not in (explained.report or "")
