"""Zeros in place of gradients that nothing led to: where that output was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import Function
from torch.nn.parallel._functions import Broadcast

from pytorch_memlab import simulate

MiB = 2**20


def place_of(tensor: torch.Tensor) -> str:
    return str(tensor.device)


class Spread(Function):
    """Copies to several devices; remembers where the gradients of the copies are."""

    seen: tuple[str, ...] = ()
    taken: tuple[int, ...] = ()

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *places: str) -> Any:
        copies = tuple(x.to(place) * 2 for place in places)
        number = torch.arange(3, device=places[0])
        ctx.mark_non_differentiable(number)
        return (*copies[:1], "no tensor", number, *copies[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        Spread.taken = tuple(map(torch.cuda.memory_allocated, range(torch.cuda.device_count())))
        tensors = [one for one in gradients if isinstance(one, torch.Tensor)]
        Spread.seen = tuple(map(place_of, tensors))
        floats = [one for one in tensors if one.is_floating_point()]
        total = sum(one.cpu() * 2 for one in floats)
        return (total.to("cuda:0"), *[None] * (len(floats)))


@pytest.mark.parametrize("used", [0, 3, 4])
@pytest.mark.parametrize(
    "places", [("cuda:0", "cuda:1", "cpu"), ("cpu", "cuda:0", "cuda:1"), ("cuda:1",) * 3]
)
def test_each_is_on_the_device_of_its_output(used: int, places: tuple[str, ...]) -> None:
    with simulate("t4", count=2):
        x = torch.ones(2, 3, device="cuda:0", requires_grad=True)
        outputs: Any = Spread.apply(x, *places)  # type: ignore[no-untyped-call]
        outputs[used].sum().backward()
        assert Spread.seen == (places[0], places[0], *places[1:])
        assert x.grad is not None
        assert x.grad.tolist() == [[2.0] * 3] * 2


def test_memory_is_that_of_their_own_gpu() -> None:
    with simulate("t4", count=2):
        x = torch.ones(MiB // 4, device="cuda:0", requires_grad=True)
        outputs: Any = Spread.apply(x, "cuda:0", "cuda:1")  # type: ignore[no-untyped-call]
        first, before = outputs[0], [torch.cuda.memory_allocated(index) for index in range(2)]
        first.sum().backward()
        grown = [taken - had for taken, had in zip(Spread.taken, before, strict=True)]
        # the loss and its gradient, which is expanded; zeros for the number; those of the other
        assert grown == [2 * 512 + 512, MiB]


def test_one_gpu_and_the_cpu() -> None:
    with simulate("t4"):
        x = torch.ones(4, device="cuda", requires_grad=True)
        outputs: Any = Spread.apply(x, "cpu", "cuda:0")  # type: ignore[no-untyped-call]
        outputs[3].sum().backward()
        assert Spread.seen == ("cpu", "cpu", "cuda:0")
        x.grad = None
        outputs = Spread.apply(x, "cuda:0", "cpu")  # type: ignore[no-untyped-call]
        outputs[3].sum().backward()
        assert Spread.seen == ("cuda:0", "cuda:0", "cpu")


def test_a_function_that_wants_none_gets_none() -> None:
    class Wants(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> Any:
            ctx.set_materialize_grads(False)
            return x * 1, x.to("cuda:1")

        @staticmethod
        def backward(ctx: Any, first: Any, second: Any) -> Any:
            assert first is None
            with torch._C.DisableTorchFunction():  # no call of the program is seen
                return torch.zeros(3).add(second.cpu()).to("cuda:0")

    with simulate("t4", count=2):
        x = torch.ones(3, device="cuda:0", requires_grad=True)
        Wants.apply(x)[1].sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        assert place_of(x.grad) == "cuda:0"


def test_a_broadcast_of_which_one_copy_is_used() -> None:
    """PyTorch's ``test_unused_output_device``."""
    with simulate("t4", count=2):
        x = torch.randn(5, 5, device="cuda:0", requires_grad=True)
        outputs: Any = Broadcast.apply([0, 1], x)  # type: ignore[no-untyped-call]
        (outputs[-1] * 2).sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, torch.full_like(x, 2))


@pytest.mark.parametrize("moved", [False, True], ids=["a leaf", "a copy of a leaf"])
def test_a_node_makes_them_where_it_works_whatever_ran_before(moved: bool) -> None:
    """Autograd runs the product on the other GPU before it comes to the parts of ``x``."""
    with simulate("t4", count=2):
        x = torch.randn(2, 3, device="cuda:1" if moved else "cuda:0", requires_grad=True)
        weight = torch.randn(3, device="cuda:1", requires_grad=True)
        first, _second = x.to("cuda:0").unbind(0)
        product = weight * 3
        loss = (first * 2).sum().to("cuda:1") + product.sum()
        loss.backward()
        assert x.grad is not None
        assert (place_of(x.grad), x.grad.tolist()) == (place_of(x), [[2.0] * 3, [0.0] * 3])


def test_a_function_on_one_gpu_has_them_there_whatever_ran_before() -> None:
    """Autograd runs the product on the other GPU before it comes to the function."""
    with simulate("t4", count=2):
        x = torch.ones(2, 3, device="cuda:0", requires_grad=True)
        outputs: Any = Spread.apply(x, "cuda:1", "cuda:1")  # type: ignore[no-untyped-call]
        product = torch.ones(3, device="cuda:0", requires_grad=True) * 3
        loss = outputs[0].sum().to("cuda:0") + product.sum()
        loss.backward()
        assert Spread.seen == ("cuda:1",) * 3
