"""Budgets of saved activations, in graphs that run op by op: bytes and operations of each."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch._functorch import config
from torch.utils.flop_counter import FlopCounterMode

from pytorch_memlab import simulate
from pytorch_memlab.simulation.machine.torch_release import RELEASE

pytestmark = pytest.mark.skipif(RELEASE < (2, 9), reason="the compiler is known from 2.9 on")

SIDE = 256
SQUARE = SIDE * SIDE * 4
PRODUCT = 2 * SIDE**3
LAYERS = 4


def saved_and_computed(backend: str | None, budget: float) -> tuple[int, int]:
    """Bytes that the forward pass keeps beside its loss, and operations of the backward pass."""
    with (
        warnings.catch_warnings(),
        simulate("h100", compute=False) as machine,
        config.patch(activation_memory_budget=budget),
    ):
        warnings.simplefilter("error", UserWarning)  # nothing runs eagerly instead
        x, *weights = (
            torch.empty(SIDE, SIDE, device="cuda", requires_grad=True) for _ in range(1 + LAYERS)
        )

        def chain() -> torch.Tensor:
            value = x.cos()
            for weight in weights:
                value = (value @ weight).cos()
            return value.sum()

        step = chain if backend is None else torch.compile(chain, backend=backend)
        step().backward()  # which makes gradients and workspaces
        before = torch.cuda.memory_allocated()
        loss = step()
        saved = torch.cuda.memory_allocated() - before - 512
        with FlopCounterMode(display=False) as counter:
            loss.backward()
        assert not machine.approximations[0].uncounted
    torch._dynamo.reset()
    return saved, counter.get_total_flops()


def test_an_eager_chain_keeps_what_each_op_reads() -> None:
    assert saved_and_computed(None, 1) == (2 * LAYERS * SQUARE, 2 * LAYERS * PRODUCT)


@pytest.mark.parametrize("kept", range(LAYERS + 1))
def test_a_budget_keeps_so_many_products_and_computes_the_others_again(kept: int) -> None:
    """The chain has 2 * LAYERS tensors; half of them are products."""
    saved, computed = saved_and_computed("aot_eager_decomp_partition", kept / (2 * LAYERS))
    again = LAYERS - kept
    assert (saved, computed) == (kept * SQUARE, (2 * LAYERS + again) * PRODUCT)


def test_the_whole_budget_keeps_what_the_eager_chain_keeps() -> None:
    whole = saved_and_computed("aot_eager_decomp_partition", 1)
    assert whole == (2 * LAYERS * SQUARE, 2 * LAYERS * PRODUCT)
