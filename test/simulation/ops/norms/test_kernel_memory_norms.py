"""What norms, softmax and losses take besides their results."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import aten, events, indices, randn, temporaries
from torch.nn import functional


def layer_norm_gradient(rows, columns, dtype=torch.float32, **options):
    width = 4 if dtype in (torch.float16, torch.bfloat16) else dtype.itemsize
    statistics = torch.float32 if width == 4 else dtype
    found = events(
        lambda g, x, m, r, w: aten.native_layer_norm_backward(
            g, x, [columns], m, r, w, w, [True, True, True]
        ),
        lambda: randn(rows, columns, dtype=dtype),
        lambda: randn(rows, columns, dtype=dtype),
        lambda: randn(rows, 1, dtype=statistics),
        lambda: randn(rows, 1, dtype=statistics),
        lambda: randn(columns, dtype=dtype),
        compute=False,
        **options,
    )
    results = [rows * columns * dtype.itemsize, columns * dtype.itemsize, columns * dtype.itemsize]
    assert found[:3] == results
    return found[3:]


@pytest.mark.parametrize(
    ("rows", "columns", "gpu"),
    [(65536, 64, "a100"), (70000, 54 * 32, "a100"), (70000, 20 * 32, "t4"), (100, 64, "a100")],
)
def test_a_layer_norm_of_few_rows_or_many_columns_sums_at_once(rows, columns, gpu):
    assert layer_norm_gradient(rows, columns, gpu=gpu) == []


@pytest.mark.parametrize(
    ("rows", "columns", "gpu", "dtype", "staged"),
    [  # blocks of threads for each result, by the results of a block; a semaphore for each row
        (65537, 64, "a100", torch.float32, [17 * 64 * (16 * 4) * 4, 4]),
        (70000, 54 * 32 - 1, "a100", torch.bfloat16, []),
        (70000, 19 * 32, "t4", torch.float32, [27 * 608 * (32 * 4) * 4, 5 * 4]),
        (2 * 10**6, 1024, "h100", torch.float64, [16 * 1024 * (32 * 4) * 8, 8 * 4]),
    ],
)
def test_a_layer_norm_of_many_rows_sums_in_two_steps(rows, columns, gpu, dtype, staged):
    blocks = min(32768 // -(-columns // 32), -(-rows // 32))
    partial = blocks * columns * dtype.itemsize
    weight = columns * dtype.itemsize
    summed = [weight, *temporaries(*staged), -weight]
    assert layer_norm_gradient(rows, columns, dtype, gpu=gpu) == [
        partial, partial, *summed, *summed, -partial, -partial,
    ]  # fmt: skip


def test_layer_norm_makes_its_input_contiguous_before_its_results():
    found = events(
        lambda x: aten.native_layer_norm(x, [8], None, None, 0.1), lambda: randn(8, 4).t()
    )
    assert found == [128, 128, 16, 16, -128]


@pytest.mark.parametrize(("dtype", "acc"), [(torch.float32, 4), (torch.bfloat16, 4)])
def test_group_norm_keeps_statistics_and_a_scale_and_a_shift(dtype, acc):
    def norm(x, w):
        return aten.native_group_norm(x, w, w, 3, 16, 25, 4, 0.1)

    found = events(norm, lambda: randn(3, 16, 5, 5, dtype=dtype), lambda: randn(16, dtype=dtype))
    size = dtype.itemsize
    assert found[:3] == [1200 * size, 12 * size, 12 * size]
    statistics = [12 * acc] * 2 if dtype != torch.float32 else []
    assert found[3:] == temporaries(*statistics, 48 * acc, 48 * acc)


@pytest.mark.parametrize(
    ("inner", "weighted", "expected"),
    [
        (25, True, temporaries(192, 192, 48, 48, 192)),
        (25, False, temporaries(192, 192, 48, 48)),
        (1, True, temporaries(48, 48)),
    ],
)
def test_the_gradient_of_group_norm_sums_by_channel_and_by_group(inner, weighted, expected):
    def gradient(g, x, m, w):
        weight = w if weighted else None
        mask = [True, weighted, weighted]
        return aten.native_group_norm_backward(g, x, m, m, weight, 3, 16, inner, 4, mask)

    shape = (3, 16, inner)
    make = [lambda: randn(*shape), lambda: randn(*shape), lambda: randn(3, 4), lambda: randn(16)]
    assert events(gradient, *make)[3 if weighted else 1 :] == expected


@pytest.mark.parametrize(
    ("gradient", "output", "copies"),
    [
        (lambda: randn(8, 32), lambda: randn(8, 32), 1),
        (lambda: randn(8, 1).expand(8, 32), lambda: randn(8, 32), 1),
        (lambda: randn(32, 8).t(), lambda: randn(32, 8).t(), 3),
        (lambda: randn(32, 8).t(), lambda: randn(8, 32), 2),
    ],
)
def test_the_gradient_of_softmax_is_made_of_a_product(gradient, output, copies):
    def softmax(g, o):
        return aten._softmax_backward_data(g, o, 1, torch.float32)

    assert events(softmax, gradient, output)[1:] == temporaries(*[1024] * copies)


def test_softmax_takes_copies_of_what_is_not_contiguous():
    transposed = [lambda: randn(32, 8).t()]
    plain = [lambda: randn(8, 32)]
    for softmax in (torch.softmax, torch.log_softmax):
        assert events(lambda x, f=softmax: f(x, 1), *plain) == [1024]
        assert events(lambda x, f=softmax: f(x, 1), *transposed) == [1024, 1024, -1024]
    log = lambda g: aten._log_softmax_backward_data(g, g, 1, torch.float32)  # noqa: E731
    assert events(log, *plain) == [1024]
    assert events(log, *transposed)[1:] == temporaries(1024, 1024)


def test_a_softmax_that_knows_empty_rows_finds_them():
    found = events(lambda x: aten._safe_softmax(x, -1), lambda: randn(8, 32))
    assert found == [1024, 256, 8, 4, 1024, -4, -8, -256, -1024]


@pytest.mark.parametrize("loss", [functional.mse_loss, functional.smooth_l1_loss])
@pytest.mark.parametrize("gpu", ["a100", "t4"])
@computed_or_dry
def test_a_loss_of_pairs_keeps_that_of_each_element(loss, gpu, compute):
    make = [lambda: randn(500, 500), lambda: randn(500, 500)]
    each = 500 * 500 * 4
    found = events(loss, *make, gpu=gpu, compute=compute)
    # Its result was resized to one element, and keeps its memory. 512 threads that add up 16
    # elements each make 31 blocks.
    assert found == [each, each, *temporaries(31 * 4, 4), -each]
    unreduced = events(lambda x, y: loss(x, y, reduction="none"), *make, compute=compute)
    assert unreduced == [each]


def test_a_huber_loss_makes_its_result_last():
    found = events(functional.huber_loss, lambda: randn(9, 9), lambda: randn(9))
    assert found == [324, 4, -324]


@computed_or_dry
def test_a_binary_cross_entropy_reduces_into_a_number(compute):
    make = [lambda: randn(500, 500).sigmoid(), lambda: randn(500, 500).sigmoid()]
    found = events(functional.binary_cross_entropy, *make, compute=compute)
    assert found == [10**6, 4, *temporaries(31 * 4, 4), -4]


@pytest.mark.parametrize("weighted", [False, True])
def test_a_binary_cross_entropy_of_logits_keeps_two_terms(weighted):
    def loss(x, y, w):
        pos_weight = w if weighted else None
        return functional.binary_cross_entropy_with_logits(x, y, pos_weight=pos_weight)

    found = events(loss, lambda: randn(8, 8), lambda: randn(8, 8), lambda: randn(8))
    extra = [32, 256, -256, -32] if weighted else []
    assert found == [256, *extra, 256, 4, -256, -256]


def test_a_likelihood_takes_nothing_of_contiguous_inputs():
    def loss(x, y):
        return aten.nll_loss_forward(x, y, None, 1, -100)

    assert events(loss, lambda: randn(8, 10), lambda: indices(8)) == [4, 4]
    assert events(loss, lambda: randn(10, 8).t(), lambda: indices(8)) == [4, 4, 320, -320]

    def images(x, y):
        return aten.nll_loss2d_forward(x, y, None, 1, -100)

    assert events(images, lambda: randn(2, 10, 3, 3), lambda: indices(2, 3, 3)) == [4, 4]


@pytest.mark.parametrize(("steps", "blanks"), [(216, False), (217, True)])
def test_the_gradient_of_a_ctc_loss_keeps_lengths_and_beta(steps, blanks):
    lengths = ([steps] * 4, [5] * 4)

    def gradient(x, y, forward):
        return aten._ctc_loss_backward(forward[0], x, y, *lengths, *forward, 0)

    def forward():
        return aten._ctc_loss(randn(steps, 4, 40).log_softmax(2), indices(4, 5) + 1, *lengths)

    make = [lambda: randn(steps, 4, 40).log_softmax(2), lambda: indices(4, 5) + 1, forward]
    offsets, beta, result = 4 * 8, 4 * steps * 11 * 4, steps * 4 * 40 * 4
    row, joined = 4 * steps * 4, 4 * steps * 6 * 4
    assert events(gradient, *make) == [
        *(offsets, offsets, offsets, beta, result),
        *(temporaries(joined, row, joined) if blanks else []),
        *(-beta, -offsets, -offsets, -offsets),
    ]


@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 4), (torch.bfloat16, 4)])
def test_norms_of_many_tensors_collect_those_of_chunks(dtype, width):
    make = lambda: [randn(65537, dtype=dtype), randn(10, dtype=dtype)]  # noqa: E731
    chunks = 2 * 2 * width
    size = dtype.itemsize
    assert events(torch._foreach_norm, make) == [chunks, size, size, -chunks]
    assert events(torch._foreach_max, make) == [4 * size, size, size, -4 * size]
    other = lambda tensors: torch._foreach_norm(tensors, 3)  # noqa: E731
    assert events(other, lambda: [randn(10)]) == [4]


def test_norms_of_unlike_tensors_are_taken_one_by_one():
    make = lambda: [randn(10**6), randn(10**6).double()]  # noqa: E731
    expected = [4, 8, *temporaries(123 * 4, 4), *temporaries(123 * 8, 4)]
    assert events(torch._foreach_norm, make) == expected


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_fused_optimizers_take_nothing(kind):
    def optimizer():
        weight = randn(100).requires_grad_()
        weight.grad = randn(100)
        options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        optimizer = kind([weight], lr=0.1, fused=True, **options)
        optimizer.step()
        return optimizer

    assert events(lambda one: one.step(), optimizer) == []
