"""Fake tensors and ops of functions inside a simulation: they work, or say why they cannot."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from pytorch_memlab import simulate
from pytorch_memlab.errors import UnsupportedCUDACallError

BUILD_HAS_CUDA = torch.version.cuda is not None
HAS_OPS_OF_FUNCTIONS = pytest.mark.skipif(
    not hasattr(TorchDispatchMode, "supports_higher_order_operators"),
    reason="this torch runs no op of functions under a mode",
)


def test_fake_tensors_take_no_memory() -> None:
    with simulate("24GiB"):
        with FakeTensorMode():
            x = torch.randn(1024, 1024, device="cuda")
            y = (x @ x).relu()
            assert y.device == torch.device("cuda", 0)
            assert y.shape == (1024, 1024)
        assert torch.cuda.max_memory_allocated() == 0
        assert torch.randn(128, device="cuda").sum().item() != 0
        assert torch.cuda.max_memory_allocated() > 0


@pytest.mark.skipif(BUILD_HAS_CUDA, reason="this build's autograd takes them")
def test_gradients_of_fake_tensors_are_refused_where_pytorch_would_abort() -> None:
    with simulate("24GiB"):
        linear = torch.nn.Linear(4, 4).cuda()
        x = torch.randn(2, 4, device="cuda")
        with pytest.raises(UnsupportedCUDACallError, match=r"trace them under torch\.no_grad\(\)"):
            torch.export.export(linear, (x,))
        with torch.no_grad():
            exported = torch.export.export(linear, (x,))
        assert [str(node.target) for node in exported.graph.nodes][3] == "aten.linear.default"


def test_gradients_that_aot_autograd_traces_are_refused_outside_of_the_compiler() -> None:
    """The second half of a split has a gradient; the first gets zeros, which C++ makes."""
    from functorch.compile import aot_function, nop

    def half(x: torch.Tensor) -> torch.Tensor:
        return (x + x).split([4, 4])[1]

    def traced(device: str) -> torch.Tensor:
        x = torch.ones(8, device=device, requires_grad=True)
        aot_function(half, nop)(x).sum().backward()
        assert x.grad is not None
        return x.grad

    with simulate("24GiB"):
        assert torch.equal(traced("cpu"), torch.tensor([0.0] * 4 + [2.0] * 4))
        with pytest.raises(UnsupportedCUDACallError, match="fake tensors of a GPU with gradients"):
            traced("cuda")


@HAS_OPS_OF_FUNCTIONS
def test_a_branch_is_run_and_placed() -> None:
    with simulate("24GiB"), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = torch.arange(1024.0, device="cuda")
        before = torch.cuda.memory_allocated()
        one = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))
        other = torch.cond(x.sum() < 0, lambda x: x + 1, lambda x: x - 1, (x,))
        assert torch.cuda.memory_allocated() - before == one.nbytes + other.nbytes
        assert (one[0].item(), other[0].item()) == (1, -1)


@HAS_OPS_OF_FUNCTIONS
def test_gradients_of_branches_are_refused() -> None:
    with simulate("24GiB"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = torch.ones(4, device="cuda", requires_grad=True)
        with pytest.raises(UnsupportedCUDACallError, match="cond with gradients is not covered"):
            torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


@HAS_OPS_OF_FUNCTIONS
def test_flex_attention_runs_as_without_a_compiler() -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    q, k, v = (torch.randn(1, 2, 128, 16) for _ in range(3))

    def run(device: str) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return flex.flex_attention(
                *(each.to(device) for each in (q, k, v)),
                score_mod=lambda score, _b, _h, row, column: score + (row - column),
            )

    expected = run("cpu")
    with simulate("24GiB"):
        result = run("cuda")
        assert result.is_cuda
        # Scores and weights of all heads stand in memory, as without a compiler on the card.
        assert torch.cuda.max_memory_allocated() > 2 * 2 * 128 * 128 * 4
        assert torch.equal(result.cpu(), expected)


def test_torch_device_stays_the_same_class() -> None:
    """Modules that are loaded then keep tables by it, as PyTorch's compiler does."""
    before = torch.device
    with simulate("24GiB", count=2):
        assert torch.device is before
        assert type(torch.device(1)) is before
        assert [torch.device(1), torch.device("cuda"), before(device=0)] == [
            before("cuda", 1),
            before("cuda"),
            before("cuda", 0),
        ]
        assert torch.zeros(2, device=1).device == torch.device("cuda", 1)
        assert torch.nn.Linear(2, 2, device=1).bias.device == torch.device("cuda", 1)
