"""Compiled ``flex_attention``: the kernels of Inductor's templates, their buffers and values."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.untimed import untimed_kernels
from torch.nn.attention import flex_attention as flex

from benchmarks.wrapper_text import recorded_graphs
from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab.simulation.machine.torch_release import RELEASE

pytestmark = pytest.mark.skipif(RELEASE < (2, 13), reason="texts of torch 2.13 are read")


@pytest.fixture(autouse=True)
def _compiled() -> Iterator[None]:
    """Nothing runs eagerly, and no graph of another test is there."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", "torch.compile runs eagerly")
        yield
    torch._dynamo.reset()


Attention = Callable[..., Any]
KEYS = 128


def same_documents(device: str, queries: int) -> Callable[..., torch.Tensor]:
    document = (torch.arange(KEYS) // 32).to(device)
    first = KEYS - queries

    def mask(_batch: Any, _head: Any, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        return (row + first >= column) & (document[row + first] == document[column])

    return mask


def attend(device: str, attention: Attention, queries: int, learns: bool) -> list[Any]:
    """A causal attention within documents, with a bias that learns: its output and gradients."""
    torch.manual_seed(0)
    query = torch.randn(2, 4, queries, 16).to(device).requires_grad_(learns)
    key, value = (torch.randn(2, 2, KEYS, 16).to(device).requires_grad_(learns) for _ in range(2))
    bias = torch.randn(4, KEYS).to(device).requires_grad_(learns)
    mask = flex.create_block_mask(
        same_documents(device, queries), None, None, queries, KEYS, device=device
    )

    def score_mod(score: Any, _batch: Any, head: Any, _row: Any, column: Any) -> Any:
        return torch.tanh(score) + bias[head, column]

    out = attention(query, key, value, score_mod=score_mod, block_mask=mask, enable_gqa=True)
    if learns:
        out.square().sum().backward()
    return [
        one.cpu() for one in (out, query.grad, key.grad, value.grad, bias.grad) if one is not None
    ]


def alone(attention: Attention) -> Attention:
    return torch.compile(attention)


def in_a_larger_function(attention: Attention) -> Attention:
    return torch.compile(lambda query, *args, **options: attention(query * 1, *args, **options) * 1)


@computed_or_dry
@pytest.mark.parametrize("compiled", [alone, in_a_larger_function])
@pytest.mark.parametrize(
    ("queries", "learns"), [(128, True), (128, False), (16, False), (1, False)]
)
def test_requests_are_those_of_the_text_and_values_those_of_the_cpu(
    compiled: Callable[[Attention], Attention],
    queries: int,
    learns: bool,
    compute: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # PyTorch refuses gradients on a CPU, though the same code computes them.
    monkeypatch.setattr(flex, "_validate_device", lambda *_tensors: None)
    expected = attend("cpu", flex.flex_attention, queries, learns)
    with simulate("h100", compute=compute) as machine, recorded_graphs() as graphs:
        results = attend("cuda", compiled(flex.flex_attention), queries, learns)
        marks = machine.approximations[0]
        assert marks.uncounted == {}
        # Eager code that makes the block mask sorts, which is an estimate.
        assert not [name for name in marks.estimated if not str(name).startswith("aten.")]
    assert [graph.differences() for graph in graphs] == [[]] * (1 + learns)
    assert all("triton_tem_fused" in graph.text for graph in graphs)
    assert len(results) == len(expected)
    if compute:
        for result, right in zip(results, expected, strict=True):
            torch.testing.assert_close(result, right)


def causal_mask(_batch: Any, _head: Any, row: Any, column: Any) -> Any:
    return row >= column


def window_mask(_batch: Any, _head: Any, row: Any, column: Any) -> Any:
    return (row >= column) & (row - column < 40)


def documents_mask(_batch: Any, _head: Any, row: Any, column: Any) -> Any:
    return row // 48 == column // 48


def plain(score: Any, _batch: Any, _head: Any, _row: Any, _column: Any) -> Any:
    return score


def alibi(score: Any, _batch: Any, head: Any, row: Any, column: Any) -> Any:
    return score - torch.exp2(-2.0 * (head + 1)) * (row - column)


def soft_cap(score: Any, _batch: Any, _head: Any, _row: Any, _column: Any) -> Any:
    return 2 * torch.tanh(score / 2)


def dense(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: Any, mask: Any
) -> torch.Tensor:
    """The attention with its matrix of scores in memory, two query heads for each of keys."""
    heads, rows, columns = query.shape[1], query.shape[2], key.shape[2]
    key, value = (each.repeat_interleave(heads // each.shape[1], 1) for each in (key, value))
    head = torch.arange(heads).view(-1, 1, 1)
    row, column = torch.arange(rows).view(-1, 1), torch.arange(columns)
    scores = score_mod(query @ key.mT / query.shape[3] ** 0.5, None, head, row, column)
    if mask is not None:
        scores = scores.masked_fill(~mask(None, None, row, column), -torch.inf)
    return scores.softmax(-1) @ value


@computed_or_dry
@pytest.mark.parametrize(
    ("score_mod", "mask"),
    [
        (plain, causal_mask),
        (plain, window_mask),
        (plain, documents_mask),
        (alibi, causal_mask),
        (soft_cap, None),
        (soft_cap, window_mask),
    ],
)
def test_masks_and_score_functions_give_the_dense_formula(
    score_mod: Any, mask: Any, compute: bool
) -> None:
    torch.manual_seed(0)
    sizes = ((2, 4, KEYS, 16), (2, 2, KEYS, 16), (2, 2, KEYS, 16))
    values = [torch.randn(size) for size in sizes]
    expected = [one.clone().requires_grad_() for one in values]
    right = dense(*expected, score_mod, mask)
    right.square().sum().backward()

    with simulate("h100", compute=compute) as machine, recorded_graphs() as graphs:
        inputs = [one.cuda().requires_grad_() for one in values]
        blocks = mask and flex.create_block_mask(mask, None, None, KEYS, KEYS, device="cuda")
        out = torch.compile(flex.flex_attention)(
            *inputs, score_mod=score_mod, block_mask=blocks, enable_gqa=True
        )
        out.square().sum().backward()
        assert machine.approximations[0].uncounted == {}
        results = [one.cpu() for one in (out, *(each.grad for each in inputs)) if one is not None]
    assert [graph.differences() for graph in graphs] == [[], []]
    assert len(results) == 4
    if compute:
        for result, one in zip(results, (right, *(each.grad for each in expected)), strict=True):
            torch.testing.assert_close(result, one)


ROWS = 2 * 256
"""Of the scores of two heads, for 256 queries."""
HEADS = ROWS * 16 * 4
"""Bytes of a query of two heads of 16 numbers each, or of a key, a value, an output."""
PER_ROW = ROWS * 4


@computed_or_dry
def test_no_matrix_of_scores_is_in_memory(compute: bool) -> None:
    def causal(_batch: Any, _head: Any, row: Any, column: Any) -> Any:
        return row >= column

    with simulate("24GiB", compute=compute):
        mask = flex.create_block_mask(causal, None, None, 256, 256, device="cuda")
        query, key, value = (
            torch.randn(1, 2, 256, 16, device="cuda", requires_grad=True) for _ in range(3)
        )
        grad = torch.ones_like(query)
        attention = torch.compile(flex.flex_attention)
        attention(query, key, value, block_mask=mask).backward(grad)  # times the kernels
        query.grad = key.grad = value.grad = None
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        out = attention(query, key, value, block_mask=mask)
        kept = torch.cuda.memory_allocated() - before
        forward = torch.cuda.max_memory_allocated() - before
        torch.cuda.reset_peak_memory_stats()
        out.backward(grad)
        backward = torch.cuda.max_memory_allocated() - before
    # The output and the log-sum-exp of each row stay; the largest score of each is of the kernel.
    assert kept == HEADS + PER_ROW
    assert forward == HEADS + 2 * PER_ROW
    # The sum of out * grad_out of each row, and the gradients of query, key and value.
    assert backward == kept + PER_ROW + 3 * HEADS


def test_memory_of_the_kernels_is_on_the_line_of_the_model() -> None:
    def model(query: torch.Tensor) -> torch.Tensor:
        query = query.sin()
        return flex.flex_attention(query, query, query)

    with untimed_kernels(), simulate("24GiB", compute=False), LineProfiler(model) as profiler:
        query = torch.randn(1, 2, 256, 16, device="cuda")
        torch.compile(model)(query)
    (table,) = profiler.display(model, columns=("peak",)).report.tables
    rows = list(table.rows.values())
    argument, sine, attended = HEADS, HEADS, HEADS + 2 * PER_ROW
    assert rows[1][0] == argument + sine
    # Of the block mask of a call without one, the forward kernel reads two numbers: how many
    # blocks of keys a row has, and which. Those of the backward kernel are not made.
    assert rows[2][0] == argument + sine + attended + 2 * 512


@computed_or_dry
def test_block_masks_are_made_by_a_compiled_function(compute: bool) -> None:
    """Not one number per score, as 256 KiB of booleans are."""

    def causal(_batch: Any, _head: Any, row: Any, column: Any) -> Any:
        return row >= column

    expected = flex.create_block_mask(causal, None, None, 512, 512, device="cpu")
    peaks = []
    with simulate("24GiB", compute=compute), recorded_graphs() as graphs:
        for options in ({"_compile": True}, {}):
            make = flex.create_block_mask if options else torch.compile(flex.create_block_mask)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            mask = make(causal, None, None, 512, 512, device="cuda", **options)
            peaks.append(torch.cuda.max_memory_allocated() - before)
            blocks = mask.kv_indices.cpu()
            del mask
        assert len(torch.overrides._get_current_function_mode_stack()) == 1
    assert [graph.differences() for graph in graphs] == [[]] * 2
    assert peaks[0] == peaks[1] < 512 * 512 // 8
    if compute:
        assert torch.equal(blocks, expected.kv_indices)


def test_tensors_that_a_score_function_makes_are_on_the_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(device: str, attention: Attention) -> torch.Tensor:
        torch.manual_seed(0)
        query = torch.randn(1, 2, 128, 16).to(device)

        def score_mod(score: Any, _batch: Any, head: Any, row: Any, column: Any) -> Any:
            slope = torch.full((), 0.5, device=score.device)
            return score - slope * (head + 1) * (row - column)

        out: torch.Tensor = attention(query, query, query, score_mod=score_mod)
        return out.cpu()

    expected = run("cpu", flex.flex_attention)
    with simulate("24GiB"):
        torch.testing.assert_close(run("cuda", torch.compile(flex.flex_attention)), expected)
