"""Warnings name the line of the program that they would name without the modes of this package."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn import functional

from pytorch_memlab import simulate
from pytorch_memlab.tensors.lines import recorded_lines


@pytest.fixture(params=["simulated", "dry run", "recorded lines", "both"])
def device(request):
    if request.param == "recorded lines":
        with recorded_lines():
            yield "cpu"
        return
    with simulate("24GiB", compute=request.param != "dry run"):
        if request.param != "both":
            yield "cuda"
            return
        with recorded_lines():
            yield "cuda"


def softmax_without_a_dimension(x):
    return functional.softmax(x), "Implicit dimension choice"  # stacklevel=3, in torch's function


def loss_of_another_shape(x):
    return functional.mse_loss(x, x[0]), "Using a target size"  # stacklevel=2


def gradient_of_no_leaf(x):
    return (x.requires_grad_() * 2).grad, "not a leaf Tensor"  # C++, above autograd


def variance_of_nothing(x):
    return x[:0].var(), r"degrees of freedom is <= 0"  # C++, in an op


def tensor_of_a_tensor(x):
    return torch.tensor(x), "To copy construct from a tensor"  # a replaced function


CALLS = (
    softmax_without_a_dimension,
    loss_of_another_shape,
    gradient_of_no_leaf,
    variance_of_nothing,
    tensor_of_a_tensor,
)


@pytest.mark.parametrize("call", CALLS)
def test_warnings_of_torch_name_the_line_of_the_program(device, call):
    x = torch.randn(3, 4, device=device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, text = call(x)
    (warned,) = caught
    assert text in str(warned.message)
    assert (warned.filename, warned.lineno) == (__file__, call.__code__.co_firstlineno + 1)


def test_a_warning_of_a_library_names_its_callers_line(device):
    """The layer calls a function of torch, which warns: its frame is no mode's."""
    x = torch.randn(3, 4, device=device)
    with pytest.warns(UserWarning, match="Using a target size") as caught:
        torch.nn.MSELoss()(x, x[0])
    assert caught[0].filename == torch.nn.modules.loss.__file__


def test_a_warning_of_the_program_stays_as_it_is(device):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn_explicit("mine", UserWarning, "elsewhere.py", 5)
        warnings.warn("mine", stacklevel=1)
    line = test_a_warning_of_the_program_stays_as_it_is.__code__.co_firstlineno + 4
    assert [(one.filename, one.lineno) for one in caught] == [("elsewhere.py", 5), (__file__, line)]


def test_warnings_are_shown_as_before_once_the_simulation_ends():
    before = vars(warnings).copy()
    with simulate("24GiB"):
        pass
    assert vars(warnings)["_showwarnmsg"] is before["_showwarnmsg"]
