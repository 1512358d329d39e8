"""Compilers, CUDA graphs and replicas run another way under simulation, and say so."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytorch_memlab import simulate
from pytorch_memlab.errors import UnsupportedCUDACallError


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (
            lambda _: torch.cuda.memory.CUDAPluggableAllocator("a.so", "b", "c"),
            "torch.cuda.CUDAPluggableAllocator",
        ),
        (lambda _: torch.cuda.ExternalStream(8), "torch.cuda.ExternalStream"),
    ],
)
def test_what_has_no_simulation_is_refused_by_its_name(
    call: Callable[[torch.Tensor], Any], name: str
) -> None:
    with simulate("24GiB", count=2):
        x = torch.ones(2, 2, device="cuda")
        with pytest.raises(UnsupportedCUDACallError) as caught:
            call(x)
        assert str(caught.value) == (
            f"{name} is not covered by the simulated GPU; run this part on a real one"
        )
        assert not torch.cuda.is_current_stream_capturing()


def test_scripted_functions_make_tensors_where_their_arguments_are() -> None:
    """TorchScript finds functions by identity, and asks C++ for a tensor's device."""
    with simulate("24GiB"):

        @torch.jit.script
        def shifted(x: torch.Tensor) -> torch.Tensor:
            return x + torch.tensor([1.0, 2.0], device=x.device) + torch.ones(2, device=x.device)

        result = shifted(torch.zeros(2, device="cuda"))
        assert result.is_cuda
        assert result.tolist() == [2, 3]

    @torch.jit.script
    def pair(x: torch.Tensor) -> torch.Tensor:
        return x + torch.tensor([1.0, 2.0])

    assert pair(torch.zeros(2)).tolist() == [1, 2]


def without_places(graph: torch.Graph) -> str:
    return re.sub(r" #.*", "", str(graph))


def peak_of(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> int:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    function(x)
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("compute", [True, False])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1,
        lambda x: (2 - x) * 2.5,
        lambda x: x.view(x.shape[0], -1, 1),
        lambda x: (x.mean(0) * x.size(0) + 1j).abs(),
    ],
    ids=["a number", "two numbers", "a size", "several numbers"],
)
def test_traced_functions_are_those_that_pytorch_traces(
    function: Callable[[torch.Tensor], torch.Tensor], compute: bool
) -> None:
    """Tracing keeps tensors of numbers, which PyTorch hands to a dispatch mode as numbers."""
    x = torch.linspace(0, 1, 4096).view(64, 64)
    expected = torch.jit.trace(function, x)
    with simulate("24GiB", compute=compute):
        on_gpu = x.cuda()
        traced = torch.jit.trace(function, on_gpu)
        result = traced(on_gpu)
        assert result.is_cuda
        if compute:
            assert torch.equal(result.cpu(), expected(x))
        del result
        assert peak_of(traced, on_gpu) == peak_of(function, on_gpu)
    if compute:  # a dry run asks for sizes, which tracing records
        assert without_places(traced.graph) == without_places(expected.graph)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_convolution_is_traced_outside_alone() -> None:
    image = torch.ones(1, 3, 8, 8)
    before = torch.jit.trace(torch.nn.Conv2d(3, 4, 3), image)
    with simulate("24GiB"):
        assert before.cuda()(image.cuda()).is_cuda
        convolution = torch.nn.Conv2d(3, 4, 3).cuda()
        assert torch.jit.script(convolution)(image.cuda()).is_cuda
        with pytest.raises(UnsupportedCUDACallError) as caught:
            torch.jit.trace(convolution, image.cuda())
    assert str(caught.value) == (
        "torch.jit.trace of a convolution is not covered by the simulated GPU: PyTorch traces none "
        "under a dispatch mode; trace the module before the simulation begins, or use "
        "torch.jit.script"
    )


RESETS = """
import torch
from pytorch_memlab import simulate

STATE = "_cuda_CUDAAllocator_AllocatorState"
had = hasattr(torch._C, STATE)
with simulate("24GiB", count=2):
    torch._dynamo.reset()
    import torch._inductor.cudagraph_trees
    torch._inductor.cudagraph_trees.reset_cudagraph_trees()
print(hasattr(torch._C, STATE) is had, torch.cuda.is_available())
"""


def test_the_compilers_caches_are_reset_in_a_fresh_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RESETS], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.stdout, done.returncode) == ("True False\n", 0), done.stderr
