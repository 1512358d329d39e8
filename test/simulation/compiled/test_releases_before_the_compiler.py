"""Releases whose compiler is not known here run compiled programs eagerly, with a mark."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytorch_memlab import simulate
from pytorch_memlab.errors import UnmodelledOpError
from pytorch_memlab.simulation.compiled import torch_compile
from pytorch_memlab.simulation.machine.torch_release import RELEASE

TENSOR = 4096


@pytest.fixture(autouse=True)
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest of the older releases; where torch itself is older, it stays."""
    monkeypatch.setattr(torch_compile, "RELEASE", min(RELEASE, (2, 8)))


def doubled(x: torch.Tensor, *, times: int = 2) -> torch.Tensor:
    return x.sin() * times


def function() -> Callable[..., Any]:
    return torch.compile(doubled, mode="reduce-overhead")


def decorated() -> Callable[..., Any]:
    @torch.compile(dynamic=True)
    def step(x: torch.Tensor) -> torch.Tensor:
        return doubled(x)

    return step


class Layer(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return doubled(x)


def module() -> Callable[..., Any]:
    return torch.compile(Layer().cuda())


def module_in_place() -> Callable[..., Any]:
    layer = Layer().cuda()
    layer.compile()
    return layer


@pytest.mark.parametrize("made", [function, decorated, module, module_in_place])
def test_the_line_that_calls_compiled_code_is_a_lower_bound(made: Callable[[], Any]) -> None:
    with simulate("h100", compute=False) as machine:
        with pytest.warns(UserWarning, match=r"ImportError: PyTorch .* is older than 2\.9") as told:
            step = made()
        assert [warning.filename for warning in told] == [__file__]
        uncounted = machine.approximations[0].uncounted
        assert not uncounted  # nothing was compiled yet
        x = torch.ones(TENSOR // 4, device="cuda")
        before = torch.cuda.memory_allocated()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it was said
            torch.cuda.reset_peak_memory_stats()
            results = [step(x), step(x)]
        # As eagerly: the sine, and its double, where compiled code has the double alone.
        assert torch.cuda.max_memory_allocated() - before == 3 * TENSOR
        assert [(op, count.calls) for (op, _), count in uncounted.items()] == [("torch.compile", 2)]
        machine.strict = True
        with pytest.raises(UnmodelledOpError, match="the memory of compiled code is not known"):
            step(x)
        with pytest.raises(UnmodelledOpError, match="the memory of compiled code is not known"):
            made()
        del results


@pytest.mark.filterwarnings("ignore:torch.compile runs eagerly")
def test_values_names_and_arguments_are_those_of_the_function() -> None:
    with simulate("h100"):
        step = torch.compile(doubled)
        x = torch.ones(3, device="cuda")
        assert step(x, times=3).tolist() == doubled(x, times=3).tolist()
        assert (step.__name__, step.__wrapped__) == ("doubled", doubled)
    # Without the simulation it is the function.
    assert torch.equal(step(torch.ones(3)), doubled(torch.ones(3)))


@pytest.mark.filterwarnings("ignore:torch.compile runs eagerly")
def test_a_module_is_copied_and_freed_as_one_that_is_not_compiled() -> None:
    gc.disable()
    try:
        with simulate("h100", compute=False) as machine:
            before = torch.cuda.memory_allocated()
            layer = torch.compile(nn.Linear(8, 8).cuda())
            copy.deepcopy(layer)(torch.ones(8, 8, device="cuda"))
            assert not machine.approximations[0].uncounted  # a copy is not compiled
            reference = weakref.ref(layer)
            del layer
            assert reference() is None
            torch._C._cuda_clearCublasWorkspaces()
            assert torch.cuda.memory_allocated() == before
    finally:
        gc.enable()
