"""Inductor pads products where it would measure that on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch._inductor.fx_passes import pad_mm

from benchmarks.wrapper_text import recorded_graphs
from pytorch_memlab import simulate

pytestmark = pytest.mark.skipif(
    not hasattr(pad_mm, "_should_pad"), reason="this release asks should_pad_bench"
)


def _allocated(rows: int, inner: int, columns: int, dtype: torch.dtype) -> int:
    """Bytes that a compiled product asks for: its copies of what it multiplies, and its result."""
    with simulate("a100"), recorded_graphs() as graphs:
        product = torch.compile(lambda one, other: one @ other)
        one = torch.zeros(rows, inner, device="cuda", dtype=dtype)
        other = torch.zeros(inner, columns, device="cuda", dtype=dtype)
        torch.mm(one, other)  # takes cuBLAS's workspace
        product(one, other)
        assert not [line for graph in graphs for line in graph.differences()]
        events = [size for line in graphs[0].events.values() for _, size in line]
        return sum(size for size in events if size > 0)


@pytest.mark.parametrize("has_triton", [False, True])
def test_rows_that_tensor_cores_cannot_read_are_padded(
    monkeypatch: pytest.MonkeyPatch, has_triton: bool
) -> None:
    monkeypatch.setattr(pad_mm, "has_triton", lambda: has_triton)
    padded = 2 * 256 * 1008 + 2 * 512 * 1008
    assert _allocated(512, 256, 1001, torch.bfloat16) == padded


def test_whole_rows_are_not_padded_though_their_number_is_odd() -> None:
    assert _allocated(509, 256, 1008, torch.bfloat16) == 2 * 509 * 1008


def test_a_program_that_asks_for_it_gets_padding_of_any_product(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch._inductor.config, "force_shape_pad", True)
    padded = 4 * 256 * 1004 + 4 * 512 * 1004
    assert _allocated(512, 256, 1001, torch.float32) == padded


def test_single_precision_is_not_padded() -> None:
    assert _allocated(512, 256, 1001, torch.float32) == 4 * 512 * 1001


def test_products_that_wait_for_the_memory_are_not_padded() -> None:
    assert _allocated(16, 16, 1001, torch.bfloat16) == 2 * 16 * 1001
