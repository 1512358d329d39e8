"""Group norm: temporaries, the format of its result, and values."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import aten, events, randn, temporaries
from torch.nn import functional as F

from pytorch_memlab import simulate


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


HALF, BFLOAT, SINGLE = torch.float16, torch.bfloat16, torch.float32


def channels_last(*shape, dtype=SINGLE):
    return lambda: randn(*shape, dtype=dtype).contiguous(memory_format=torch.channels_last)


@computed_or_dry
def test_a_group_norm_copies_channels_last_and_returns_none(compute):
    def norm(x, w):
        result, mean, deviation = aten.native_group_norm(x, w, w, 2, 8, 300, 4, 0.1)
        assert result.is_contiguous()
        return result, mean, deviation

    whole, groups, scales = 2 * 8 * 300 * 4, 2 * 4 * 4, 2 * 8 * 4
    found = events(norm, channels_last(2, 8, 20, 15), lambda: randn(8), compute=compute)
    assert found == [whole, whole, groups, groups, scales, scales, -scales, -scales, -whole]
    plain = events(norm, lambda: randn(2, 8, 20, 15), lambda: randn(8), compute=compute)
    assert plain == [whole, groups, groups, scales, scales, -scales, -scales]


@computed_or_dry
def test_its_gradient_copies_both_and_is_contiguous(compute):
    def gradient(g, x, m, w):
        mask = [True, True, True]
        found = aten.native_group_norm_backward(g, x, m, m, w, 2, 8, 300, 4, mask)
        assert found[0].is_contiguous()
        return found

    make = [channels_last(2, 8, 20, 15)] * 2 + [lambda: randn(2, 4), lambda: randn(8)]
    whole, sums, groups = 2 * 8 * 300 * 4, 2 * 8 * 4, 2 * 4 * 4
    found = events(gradient, *make, compute=compute)
    assert found[:5] == [whole, whole, whole, 8 * 4, 8 * 4]
    coefficients = [groups, groups, sums, -sums, -groups, -groups]
    assert found[5:] == [sums, sums, *coefficients, -sums, -sums, -whole, -whole]


@pytest.mark.parametrize("weighted", [True, False])
def test_a_group_norm_computes_what_a_cpu_computes(weighted):
    torch.manual_seed(0)
    tensor = torch.randn(2, 8, 3, 5).double().contiguous(memory_format=torch.channels_last)
    leaves = [tensor, *((torch.randn(8).double(), torch.randn(8).double()) if weighted else ())]

    def run(*given):
        result = F.group_norm(given[0], 4, *given[1:])
        result.sin().sum().backward()
        return [result.detach().cpu(), *(one.grad.cpu() for one in given)]

    expected = run(*(one.clone().requires_grad_() for one in leaves))
    with simulate("1GiB"):
        found = run(*(one.cuda().requires_grad_() for one in leaves))
        torch.testing.assert_close(found, expected)
