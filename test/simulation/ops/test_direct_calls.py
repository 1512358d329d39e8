"""Ops of CUDA alone that a program calls by their names: they work, or are refused by name."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.computed_or_dry import computed_or_dry
from support.dry_run_comparison import allocator_events

from pytorch_memlab import simulate
from pytorch_memlab.errors import UnsupportedCUDACallError

PAIRS = (1, 1), (1, 1), (1, 1), 1


def randn(*size):
    return torch.randn(size, device="cuda")


def sizes(call, *tensors):
    with allocator_events() as events:
        call(*tensors)
    return [size for kind, size, *_ in events if kind == "malloc"]


@computed_or_dry
@pytest.mark.parametrize(
    ("direct", "behind"),
    [
        (
            lambda x, w, _: torch.cudnn_convolution(x, w, *PAIRS, False, False, True),
            lambda x, w, _: F.conv2d(x, w, padding=1),
        ),
        (
            lambda x, w, _: torch.cudnn_convolution_transpose(
                x, w, (1, 1), (0, 0), *PAIRS[1:], False, False, True
            ),
            lambda x, w, _: F.conv_transpose2d(x, w, padding=1),
        ),
        (
            lambda x, w, b: torch.cudnn_convolution_relu(x, w, b, *PAIRS),
            lambda x, w, b: F.conv2d(x, w, b, padding=1).relu_(),
        ),
        (
            lambda x, w, b: torch.cudnn_convolution_add_relu(x, w, x, 2.0, b, *PAIRS),
            lambda x, w, b: F.conv2d(x, w, b, padding=1).add_(x, alpha=2.0).relu_(),
        ),
    ],
)
def test_a_convolution_of_cudnn_is_the_one_behind_convolution(direct, behind, compute):
    with simulate("a100", compute=compute):
        tensors = randn(2, 4, 16, 16), randn(4, 4, 3, 3), randn(4)
        with torch.no_grad():
            assert sizes(direct, *tensors) == sizes(behind, *tensors) != []
            if compute:
                torch.testing.assert_close(direct(*tensors), behind(*tensors))


@computed_or_dry
def test_its_gradients_are_those_of_a_convolution(compute):
    with simulate("a100", compute=compute):
        leaves = [randn(2, 4, 16, 16).requires_grad_(), randn(4, 4, 3, 3).requires_grad_()]
        direct = torch.cudnn_convolution(*leaves, *PAIRS, False, False, True)
        found = torch.autograd.grad(direct.square().sum(), leaves)
        expected = torch.autograd.grad(F.conv2d(*leaves, padding=1).square().sum(), leaves)
        assert [one.shape for one in found] == [one.shape for one in leaves]
        if compute:
            torch.testing.assert_close(found, expected)


@computed_or_dry
def test_statistics_of_ranks_that_saw_as_much(compute):
    with simulate("a100", compute=compute):
        x, means = randn(2, 3, 4), randn(5, 3)
        running = [torch.zeros(3, device="cuda"), torch.ones(3, device="cuda")]
        gather = torch.batch_norm_gather_stats
        found = sizes(lambda: gather(x, means, means.abs() + 1, *running, 0.1, 1e-5, 8)[0])
        counts = 5 * 4
        assert counts in found
        if compute:
            mean, _ = gather(x, means, means.abs() + 1, *running, 0.1, 1e-5, 8)
            torch.testing.assert_close(mean, means.mean(0))


@computed_or_dry
def test_what_is_not_known_is_refused_by_name(compute):
    with simulate("a100", compute=compute):
        x, grid = randn(2, 4, 8, 8), randn(2, 8, 8, 2)
        with pytest.raises(UnsupportedCUDACallError, match="aten::cudnn_grid_sampler"):
            torch.cudnn_grid_sampler(x, grid)
        with pytest.raises(NotImplementedError, match="no kernel for tensors of the CPU"):
            torch.cudnn_convolution(x.cpu(), torch.ones(4, 4, 3, 3), *PAIRS, False, False, True)


def test_cudnn_convolves_no_bfloat16_on_older_gpus():
    calls = (
        lambda x, w: torch.cudnn_convolution(x, w, *PAIRS, False, False, True),
        lambda x, w: torch.cudnn_convolution_transpose(
            x, w, (1, 1), (0, 0), *PAIRS[1:], False, False, True
        ),
        lambda x, w: torch.cudnn_convolution_relu(x, w, None, *PAIRS),
        lambda x, w: torch.cudnn_convolution_add_relu(x, w, x, None, None, *PAIRS),
    )
    for gpu, refuses in (("t4", True), ("a100", False)):
        with simulate(gpu):
            x = torch.ones(1, 4, 3, 3, dtype=torch.bfloat16, device="cuda")
            for call in calls:
                if refuses:
                    with pytest.raises(RuntimeError, match="unable to find an engine"):
                        call(x, x.expand(4, 4, 3, 3))
                else:
                    assert call(x, x.expand(4, 4, 3, 3)).is_cuda
            assert torch.nn.functional.conv2d(x, x).shape == (1, 1, 1, 1)


@computed_or_dry
def test_a_number_may_stand_in_place_of_the_first_tensor(compute):
    with simulate("a100", compute=compute):
        for op, result in ((torch.ops.aten.mul, 2.0), (torch.ops.aten.add, 3.0)):
            for device in ("cpu", "cuda"):
                computed = op.Tensor(2, torch.ones(3, device=device))
                assert (computed.device.type, computed.shape) == (device, (3,))
                if compute:
                    assert computed.tolist() == [result] * 3
