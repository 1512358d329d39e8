"""Outputs lie in memory in a dry run as with arithmetic, of operands that lie differently."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from pytorch_memlab import simulate

aten = torch.ops.aten
LAYOUTS = {
    "contiguous": lambda device: torch.rand(4, 64, 60, device=device),
    "permuted": lambda device: torch.rand(60, 4, 64, device=device).permute(1, 2, 0),
    "sliced": lambda device: torch.rand(4, 64, 120, device=device)[..., ::2],
}
OPS = {
    "elu_backward": lambda x, y: aten.elu_backward(x, 1.0, 1.0, 1.0, False, y),
    "hardtanh_backward": lambda x, y: aten.hardtanh_backward(x, y, -1.0, 1.0),
    "hardsigmoid_backward": aten.hardsigmoid_backward,
    "hardswish_backward": aten.hardswish_backward,
    "softplus_backward": lambda x, y: aten.softplus_backward(x, y, 1.0, 20.0),
    "logit_backward": lambda x, y: aten.logit_backward(x, y, None),
    "native_dropout_backward": lambda x, y: aten.native_dropout_backward(x, y > 0.5, 2.0),
    "xlogy": torch.xlogy,
    "xlogy of an integer": lambda x, y: torch.xlogy(torch.ones_like(x, dtype=torch.int64), y),
    "copysign": torch.copysign,
    "copysign, broadcast": lambda x, y: torch.copysign(x[:, :1], y),
    "div by a scalar": lambda x, y: torch.div(x, y.max(), rounding_mode="floor"),
    "div by a number": lambda x, _: torch.div(x, 3, rounding_mode="floor"),
    "floor_divide by a number": lambda x, _: x // 3,
    "copysign of a number": lambda x, _: torch.copysign(x, -1),
    "xlogy of a number": lambda x, _: torch.xlogy(3, x),
    "floor_divide by a scalar": lambda x, y: torch.floor_divide(x, y.max()),
    "pow of a number": lambda x, _: 2**x,
    "binary_cross_entropy": lambda x, y: aten.binary_cross_entropy(x, y, None, 0),
    "mse_loss_backward": lambda x, y: aten.mse_loss_backward(x.new_ones(()), x, y, 1),
    "smooth_l1_loss_backward": lambda x, y: aten.smooth_l1_loss_backward(
        x.new_ones(()), x, y, 1, 1.0
    ),
    "huber_loss_backward": lambda x, y: aten.huber_loss_backward(x.new_ones(()), x, y, 1, 1.0),
    "_log_softmax_backward_data": lambda x, y: aten._log_softmax_backward_data(
        x, y, -1, torch.float32
    ),
}


def layout(op, first, second, device):
    result = op(LAYOUTS[first](device), LAYOUTS[second](device))
    return result.shape, result.stride(), result.dtype


@pytest.mark.parametrize(("first", "second"), [*permutations(LAYOUTS, 2)])
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_the_layout_is_that_of_the_kernel(op, first, second):
    with simulate("a100", compute=False):
        without_values = layout(op, first, second, "cuda")

    assert without_values == layout(op, first, second, "cpu")
