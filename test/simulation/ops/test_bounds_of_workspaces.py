"""The most memory of libraries that is not counted: bytes, from the sizes of each call."""

from __future__ import annotations

import pytest
import torch
from support.op_memory import randn
from torch.nn import functional as F

from pytorch_memlab.simulation import simulate

aten = torch.ops.aten


def bounds_of(work, gpu="h100", **options):
    """The bound of each op that took memory of unknown size, and whether it gives way."""
    with simulate(gpu, compute=False, **options) as machine:
        work()
        counts = machine.approximations[0].uncounted
        return {
            op.split(".")[1]: (count.at_most, count.gives_way) for (op, _), count in counts.items()
        }


def test_batch_norm_sums_no_more_than_its_input():
    def work():
        image = randn(8, 16, 10, 12, dtype=torch.float16).requires_grad_()
        weight, bias = torch.ones(2, 16, device="cuda")
        mean, variance = torch.zeros(2, 16, device="cuda")
        F.batch_norm(image, mean, variance, weight, bias, training=True).sum().backward()

    nbytes = 4 * 8 * 16 * 10 * 12
    assert bounds_of(work) == {
        "cudnn_batch_norm": (nbytes, False),
        "cudnn_batch_norm_backward": (nbytes, False),
    }


@pytest.mark.parametrize(
    ("transform", "elements"),
    [
        (lambda: torch.fft.fft(randn(4, 60, dtype=torch.complex64)), 4 * 60),
        (lambda: torch.fft.rfft(randn(4, 60)), 4 * 60),
        (lambda: torch.fft.irfft(randn(4, 31, dtype=torch.complex64)), 4 * 60),
        (lambda: torch.fft.fftn(randn(2, 3, 4, 5, dtype=torch.complex64)), 2 * 3 * 4 * 5),
    ],
)
def test_cufft_works_in_eight_complex_numbers_for_each_element(transform, elements):
    [bound] = bounds_of(transform).values()
    assert bound == (8 * 8 * elements, False)


def test_cudnn_attention():
    def work():
        query = randn(2, 8, 200, 64, dtype=torch.bfloat16).requires_grad_()
        key, value = (randn(2, 8, 300, 64, dtype=torch.bfloat16) for _ in range(2))
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
            F.scaled_dot_product_attention(query, key, value).sum().backward()

    tiles = {200: 256, 300: 384, 64: 128}
    heads = 2 * 8
    output = 4 * heads * tiles[200] * tiles[64]
    keys = 4 * heads * tiles[300] * tiles[64]
    scores = 2 * heads * tiles[200] * tiles[300]
    assert bounds_of(work) == {
        "_scaled_dot_product_cudnn_attention": (output + 4 * heads * 200, False),
        "_scaled_dot_product_cudnn_attention_backward": (2 * output + 2 * keys + scores, False),
    }


def test_large_scores_of_cudnn_attention_are_not_kept():
    def work():
        query, key, value = (
            randn(1, 16, 8192, 128, dtype=torch.bfloat16).requires_grad_() for _ in range(3)
        )
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
            F.scaled_dot_product_attention(query, key, value).sum().backward()

    name = "_scaled_dot_product_cudnn_attention_backward"
    accumulated = 4 * 4 * 16 * 8192 * 128
    assert bounds_of(work)[name] == (accumulated + (256 << 20), False)


def test_ctc_has_probabilities_of_labels_and_blanks():
    def work():
        lengths = torch.full((3,), 50, dtype=torch.int32)
        targets = torch.ones(15, dtype=torch.int32)
        labels = torch.full((3,), 5, dtype=torch.int32)
        F.ctc_loss(randn(50, 3, 20).log_softmax(-1), targets, lengths, labels, reduction="sum")

    bound = 4 * (2 * 50 * 3 * 511 + 50 * 3 * 20)
    assert bounds_of(work) == {"_cudnn_ctc_loss": (bound, False)}


def test_what_has_no_bound_says_so():
    assert bounds_of(lambda: torch.unique(randn(8, 4), dim=0)) == {"unique_dim": (None, False)}
