"""Inductor pads products where it would measure that on a GPU, and takes what it measures with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.untimed import untimed_kernels
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor.fx_passes import pad_mm

from benchmarks.wrapper_text import recorded_graphs
from pytorch_memlab import explain_oom, simulate

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


def test_a_program_that_asks_for_it_gets_padding_of_any_product() -> None:
    padded = 4 * 256 * 1004 + 4 * 512 * 1004
    with torch._inductor.config.patch(force_shape_pad=True):
        assert _allocated(512, 256, 1001, torch.float32) == padded


def test_single_precision_is_not_padded() -> None:
    assert _allocated(512, 256, 1001, torch.float32) == 4 * 512 * 1001


def test_products_that_wait_for_the_memory_are_not_padded() -> None:
    assert _allocated(16, 16, 1001, torch.bfloat16) == 2 * 16 * 1001


FLUSHED = 40 * 2**20  # bytes of an A100's second cache, which each measurement writes over
ROUND = 512


def rounded(size: int) -> int:
    return -(-size // ROUND) * ROUND


def _peak_of_call(product: Any, *shapes: tuple[int, ...], dtype: torch.dtype) -> int:
    """The most bytes that a call adds to its inputs; cuBLAS's workspace was taken before."""
    tensors = [torch.zeros(shape, device="cuda", dtype=dtype) for shape in shapes]
    torch.mm(*tensors[-2:])
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    product(*tensors)
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("dry", [False, True])
@pytest.mark.parametrize(("dtype", "columns"), [(torch.bfloat16, 1008), (torch.float32, 1004)])
def test_a_product_is_measured_once_as_it_is_and_padded(
    dtype: torch.dtype, columns: int, dry: bool
) -> None:
    shapes = (512, 256), (256, 1001)
    itemsize = dtype.itemsize
    matrices = rounded(itemsize * 512 * 256) + rounded(itemsize * 256 * 1001)
    padded = rounded(itemsize * 256 * columns) + rounded(itemsize * 512 * columns)
    with untimed_kernels(), simulate("a100", compute=not dry):
        first = torch.compile(lambda one, other: one @ other)
        assert _peak_of_call(first, *shapes, dtype=dtype) == matrices + padded + FLUSHED
        # In another graph the same product is known: only the call itself takes memory.
        second = torch.compile(lambda one, other: (one @ other).neg())
        assert _peak_of_call(second, *shapes, dtype=dtype) < 2 * padded


def test_a_bias_is_measured_with_its_product() -> None:
    shapes = (512, 1001), (512, 256), (256, 1001)
    half = torch.bfloat16
    bias, first, second = (rounded(2 * rows * columns) for rows, columns in shapes)
    # The padded product has another bias, and pads it.
    padded = rounded(2 * 256 * 1008) + 2 * rounded(2 * 512 * 1008)
    with simulate("a100", compute=False):
        product = torch.compile(lambda bias, one, other: torch.addmm(bias, one, other))
        expected = 2 * bias + first + second + padded + FLUSHED
        assert _peak_of_call(product, *shapes, dtype=half) == expected


def test_random_numbers_are_those_of_a_program_that_measures_nothing() -> None:
    def numbers(columns: int) -> torch.Tensor:
        with simulate("a100"):
            torch.manual_seed(0)
            one = torch.zeros(512, 256, device="cuda", dtype=torch.bfloat16)
            other = torch.zeros(256, columns, device="cuda", dtype=torch.bfloat16)
            torch.compile(lambda one, other: one @ other)(one, other)
            return torch.rand(8, device="cuda").cpu()

    assert torch.equal(numbers(1001), numbers(1008))


@pytest.mark.new_process("torch.compile keeps its frame evaluator once a compiler has failed")
def test_what_does_not_fit_while_it_is_measured_is_an_error_of_the_compiler() -> None:
    with simulate("64MiB", compute=False):
        one = torch.zeros(1024, 1024, device="cuda", dtype=torch.bfloat16)
        other = torch.zeros(1024, 16001, device="cuda", dtype=torch.bfloat16)
        product = torch.compile(lambda one, other: (one @ other).sum())
        with (
            pytest.raises(BackendCompilerFailed, match="'inductor'") as raised,
            explain_oom(no_try=True) as explained,
        ):
            product(one, other)
        assert isinstance(raised.value.inner_exception, torch.OutOfMemoryError)
    heading = (explained.report or "").splitlines()[0]
    assert heading.startswith("Out of memory on cuda:0 at test_padding.py:")
