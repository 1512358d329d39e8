"""``flex_attention`` with gradients: what it computes, and what it keeps on the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch
from support.computed_or_dry import computed_or_dry

from pytorch_memlab import simulate
from pytorch_memlab.simulation.machine.torch_release import RELEASE

if TYPE_CHECKING:
    from collections.abc import Callable

flex = pytest.importorskip("torch.nn.attention.flex_attention")
if not hasattr(flex, "create_block_mask"):
    pytest.skip("this torch has no block masks", allow_module_level=True)

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without"),
]


@pytest.fixture(autouse=True)
def nothing_is_compiled():
    """Forget graphs: a guard that fails because its tensors are dead is an error."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


ROWS = 2 * 256
"""Of the scores of two heads, for 256 queries."""
SCORES = ROWS * 256 * 4
HEADS = ROWS * 16 * 4
"""Bytes of a query of two heads of 16 numbers each, or of a key, a value, an output."""
PER_ROW = ROWS * 4


class Peaks(NamedTuple):
    """Bytes above those before the forward pass."""

    kept: int
    forward: int
    backward: int


def biased(device: str, attention: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    """A causal attention within documents, with a bias that learns: its output and gradients."""
    torch.manual_seed(0)
    query = torch.randn(2, 4, 128, 16).to(device).requires_grad_()
    key, value = (torch.randn(2, 2, 128, 16).to(device).requires_grad_() for _ in range(2))
    bias = torch.randn(4, 128).to(device).requires_grad_()
    document = (torch.arange(128) // 32).to(device)
    mask = flex.create_block_mask(
        lambda _b, _h, row, column: (row >= column) & (document[row] == document[column]),
        None, None, 128, 128, device=device,
    )  # fmt: skip
    out = attention(
        query,
        key,
        value,
        score_mod=lambda score, _b, head, _row, column: torch.tanh(score) + bias[head, column],
        block_mask=mask,
        enable_gqa=True,
    )
    (out * out).sum().backward()
    return [each.cpu() for each in (out, query.grad, key.grad, value.grad, bias.grad)]


def by_distance(score, _batch, _head, row, column):
    return score + (row - column)


def peaks_of(attention: Callable[..., torch.Tensor]) -> Peaks:
    torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
    query, key, value = (
        torch.randn(1, 2, 256, 16, device="cuda", requires_grad=True) for _ in range(3)
    )
    grad = torch.ones_like(query)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = attention(query, key, value, score_mod=by_distance)
    kept = torch.cuda.memory_allocated() - before
    forward = torch.cuda.max_memory_allocated() - before
    torch.cuda.reset_peak_memory_stats()
    out.backward(grad)
    return Peaks(kept, forward, torch.cuda.max_memory_allocated() - before)


def test_gradients_are_those_of_the_cpu(monkeypatch):
    with monkeypatch.context() as patch:
        # PyTorch refuses gradients there, though the same code computes them.
        patch.setattr(flex, "_validate_device", lambda *_tensors: None, raising=False)
        expected = biased("cpu", flex.flex_attention)
    with simulate("24GiB"):
        results = biased("cuda", flex.flex_attention)
    for result, right in zip(results, expected, strict=True):
        torch.testing.assert_close(result, right)


@pytest.mark.skipif(RELEASE < (2, 7), reason="torch 2.6 makes another mask of one block")
@computed_or_dry
def test_eager_backward_holds_seven_matrices_of_scores(compute):
    with simulate("24GiB", compute=compute):
        peaks = peaks_of(flex.flex_attention)
    # The output, log-sum-exp and largest score of each row, four tensors of the block mask.
    assert peaks.kept == HEADS + 2 * PER_ROW + 4 * 512
    # Scores, scores with the score function, their softmax, its gradient, the gradient of the
    # scores with the function, that scaled, that masked.
    smaller = (
        3 * HEADS  # gradients
        + 2 * HEADS  # key and value, repeated for each head
        + HEADS  # gradient of the value
        + 3 * PER_ROW  # log-sum-exp and its gradient, sums of out * grad_out
        + ROWS  # rows that are masked out
        + 2 * 512 + 2 * 2048  # indices of batches, heads, rows, columns
        + 2 * 512  # the mask, and zero for what it masks
    )  # fmt: skip
    second_workspace = 8_519_680
    assert peaks.backward == peaks.kept + 7 * SCORES + smaller + second_workspace


def test_a_score_function_may_make_tensors_on_the_gpu(monkeypatch):
    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        query = torch.randn(1, 2, 128, 16).to(device).requires_grad_()

        def score_mod(score, _b, head, row, column):
            slopes = torch.full((2,), 0.5, device=score.device)
            return score - slopes[head] * (row - column)

        out = flex.flex_attention(query, query, query, score_mod=score_mod)
        out.square().sum().backward()
        return [out.cpu(), query.grad.cpu()]

    with monkeypatch.context() as patch:
        patch.setattr(flex, "_validate_device", lambda *_tensors: None, raising=False)
        expected = run("cpu")
    with simulate("24GiB"):
        results = run("cuda")
    for result, right in zip(results, expected, strict=True):
        torch.testing.assert_close(result, right)
