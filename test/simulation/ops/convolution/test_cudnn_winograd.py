"""The workspaces of cuDNN that one recording shows, and all others, which are unknown."""

from __future__ import annotations

import pytest
import torch
from support.op_memory import events, randn
from torch.nn import functional as F

from pytorch_memlab.simulation import simulate

GPU = "quadro-rtx6000"

RECORDED = {(30, 16): 82_880, (16, 32): 51_328, (32, 64): 205_056}
RECORDED_GRADIENTS = {(32, 64): 204_928, (16, 32): 84_032, (30, 16): 50_168}


@pytest.mark.parametrize("side", [7, 32])
@pytest.mark.parametrize("channels", RECORDED)
def test_a_forward_pass_takes_what_was_recorded(channels, side):
    read, made = channels
    found = events(
        lambda image, weight: F.conv2d(image, weight, padding="same"),
        lambda: randn(1, read, side, side),
        lambda: randn(made, read, 3, 3),
        gpu=GPU,
        compute=False,
    )
    workspace = RECORDED[channels]
    assert found == [4 * made * side * side, workspace, -workspace]


@pytest.mark.parametrize("channels", RECORDED_GRADIENTS)
def test_a_gradient_of_the_input_takes_what_was_recorded(channels):
    read, made = channels

    def differentiate(image, weight, gradient):
        return torch.autograd.grad(F.conv2d(image, weight, padding=1), image, gradient)

    found = events(
        differentiate,
        lambda: randn(1, read, 9, 9).requires_grad_(),
        lambda: randn(made, read, 3, 3),
        lambda: randn(1, made, 9, 9),
        gpu=GPU,
        compute=False,
    )
    workspace = RECORDED_GRADIENTS[channels]
    result = found.index(4 * read * 81)
    assert found[result + 1 : result + 3] == [workspace, -workspace]


def marks_of(work, gpu=GPU):
    """Ops that were estimates, and those that took memory of unknown size."""
    with simulate(gpu, compute=False) as machine:
        work()
        approximations = machine.approximations[0]
        return set(approximations.estimated), {op for op, _ in approximations.uncounted}


def convolve(size=(1, 4, 8, 8), weight=(8, 4, 3, 3), dtype=torch.float32, last=False, **options):
    layout = torch.channels_last if last else torch.contiguous_format
    return F.conv2d(
        randn(*size, dtype=dtype).to(memory_format=layout), randn(*weight, dtype=dtype), **options
    )


FORWARD, BACKWARD = "aten.convolution.default", "aten.convolution_backward.default"


@pytest.mark.parametrize("gpu", ["t4", "v100", "rtx2080ti", GPU])
def test_it_is_an_estimate_on_gpus_before_ampere(gpu):
    assert marks_of(convolve, gpu) == ({FORWARD}, set())


@pytest.mark.parametrize(
    "options",
    [
        {"size": (2, 4, 8, 8)},
        {"weight": (8, 4, 1, 1), "padding": 1},
        {"weight": (8, 4, 5, 5)},
        {"weight": (8, 2, 3, 3), "groups": 2},
        {"stride": 2},
        {"stride": (1, 2)},
        {"dilation": 2},
        {"dtype": torch.float16},
        {"dtype": torch.float64},
        {"last": True},
    ],
)
def test_what_no_recording_shows_is_unknown(options):
    _, unknown = marks_of(lambda: convolve(**options))
    assert unknown == {FORWARD}


@pytest.mark.parametrize("gpu", ["a100", "l4", "h100", "24GiB"])
def test_gpus_that_may_round_to_tf32_are_unknown(gpu):
    assert marks_of(convolve, gpu) == (set(), {FORWARD})


@pytest.mark.parametrize("setting", ["benchmark", "deterministic"])
def test_other_choices_of_engines_are_unknown(monkeypatch, setting):
    monkeypatch.setattr(torch.backends.cudnn, setting, True)
    assert marks_of(convolve) == (set(), {FORWARD})


@pytest.mark.parametrize(("of_weight", "unknown"), [(False, set()), (True, {BACKWARD})])
def test_the_gradient_of_the_weight_is_unknown(of_weight, unknown):
    def work():
        image = randn(1, 4, 8, 8).requires_grad_()
        weight = randn(8, 4, 3, 3).requires_grad_(of_weight)
        F.conv2d(image, weight).sum().backward()

    assert marks_of(work) == ({FORWARD, BACKWARD}, unknown)
