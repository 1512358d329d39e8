"""Gradients are added in place, as on a GPU, unless the program can see it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed.fsdp
import torch.nn.functional as F
from support.computed_or_dry import computed_or_dry
from support.dry_run_comparison import allocator_events
from torch import nn

from pytorch_memlab import simulate
from pytorch_memlab.simulation.machine.torch_release import RELEASE


@pytest.fixture
def a100() -> Any:
    with simulate("a100") as machine:
        yield machine


def test_gradients_are_added_in_place_as_on_a_gpu(a100):
    leaf = torch.ones(2**20, device="cuda", requires_grad=True)
    total = (leaf * leaf).sum()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    total.backward()
    made = torch.cuda.memory_stats()["allocation.all.allocated"] - before
    assert made == 3  # the first gradient, and that of each factor: their sum is one of them
    assert leaf.grad is not None
    assert leaf.grad.unique().tolist() == [2.0]


def test_the_gradient_of_a_maximum_is_scattered_into_its_zeros(a100):
    leaf = torch.randn(64, 64, device="cuda", requires_grad=True)
    largest = leaf.max(dim=1).values.sum()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    largest.backward()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] - before == 2
    assert leaf.grad is not None
    assert leaf.grad.sum().item() == 64


def test_a_gradient_that_the_program_holds_is_not_written_to(a100):
    leaf = torch.ones(4, device="cuda", requires_grad=True)
    middle = leaf * 1
    held: list[torch.Tensor] = []
    middle.register_hook(lambda gradient: held.append(gradient))
    first, second = middle * 2, middle * 3
    first.register_hook(lambda gradient: held.append(gradient))
    (first + second).sum().backward()
    assert [gradient.tolist() for gradient in held] == [[1.0] * 4, [5.0] * 4]
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [5.0] * 4


SINGLE, MASK = 64 * 64 * 4, 64 * 64


def rand(*size):
    return torch.rand(size, device="cuda")


def indices(*values):
    return torch.tensor(values, device="cuda")


def backward_events(function, leaves, compute):
    """Sizes that a backward pass asks for, and its frees as zeros."""
    with simulate("80GiB", compute=compute):
        inputs = [rand(64, 64).requires_grad_() for _ in range(leaves)]
        result = function(*inputs)
        gradient = torch.ones_like(result)
        with allocator_events() as events:
            result.backward(gradient)
        return [0 if kind == "free" else rest[0] for kind, *rest in events]


@computed_or_dry
@pytest.mark.parametrize(
    ("function", "gradient"),
    [
        (lambda x: F.binary_cross_entropy_with_logits(x, rand(64, 64)), [SINGLE]),
        (lambda x: F.binary_cross_entropy_with_logits(x, rand(64, 64), rand(64)), [SINGLE]),
        (
            lambda x: F.binary_cross_entropy_with_logits(x, rand(64, 64), pos_weight=rand(64)),
            [SINGLE, SINGLE, SINGLE, 0, 0],  # weight of each target, gradient, sigmoid
        ),
        (lambda x: F.binary_cross_entropy(rand(64, 64), x, reduction="sum"), [SINGLE]),
        pytest.param(
            lambda x: x.clamp(rand(64, 64), rand(64, 64)),
            [4, MASK, MASK, SINGLE, 0, 0, 0],
            marks=pytest.mark.skipif(RELEASE >= (2, 14), reason="a formula that was not read yet"),
        ),
        (lambda x: x.max(0)[0], [SINGLE]),
        (lambda x: x.kthvalue(3, 0)[0], [SINGLE]),
        (lambda x: x.sort(0)[0], [SINGLE]),
        (lambda x: x.cummax(0)[0], [SINGLE]),
        (lambda x: x.gather(0, torch.ones_like(x, dtype=torch.int64)), [SINGLE]),
        (lambda x: x.index_select(0, indices(1, 3)), [SINGLE]),
        (lambda x: x.take(indices(1, 3)), [SINGLE]),
        (lambda x: x.trace(), [SINGLE, 64 * 8, 0]),
    ],
)
def test_a_formula_writes_into_what_it_made(function, gradient, compute):
    found = backward_events(function, 1, compute)
    assert found[: len(gradient)] == gradient
    assert set(found[len(gradient) :]) <= {0}


@computed_or_dry
@pytest.mark.parametrize(
    "reduce",
    [
        lambda x, y: x.index_reduce(0, torch.arange(64, device="cuda"), y, "amax"),
        lambda x, y: x.scatter_reduce(0, torch.ones_like(x, dtype=torch.int64), y, "amin"),
    ],
)
def test_a_formula_that_reads_its_first_operand_again_copies_it(reduce, compute):
    found = backward_events(reduce, 2, compute)
    compared = [SINGLE, MASK, SINGLE, 0, MASK, SINGLE, 0]  # values, and where both inputs have them
    count, quotient = SINGLE, SINGLE
    assert found[:9] == [*compared, count, quotient]
    assert found.count(SINGLE) == 8  # and two gradients, each of a share, one of them selected


def test_the_gradients_of_bounds_that_are_equal_are_those_of_a_cpu():
    torch.manual_seed(0)
    values = [torch.randint(-2, 3, (64,)).float() for _ in range(3)]

    def gradients(device):
        x, low, high = (value.detach().to(device).requires_grad_() for value in values)
        x.clamp(low, high).sum().backward()
        return [one.grad.tolist() for one in (x, low, high)]

    expected = gradients("cpu")
    with simulate("24GiB"):
        assert gradients("cuda") == expected


@computed_or_dry
@pytest.mark.parametrize("weights", [[], [torch.float32], [torch.float64]])
def test_a_formula_writes_wider_numbers_into_what_it_made(weights, compute):
    def backward(x, target, *weights):
        loss = F.binary_cross_entropy_with_logits(x, target, *weights, reduction="none")
        gradient = torch.ones_like(loss)
        with allocator_events() as events:
            loss.backward(gradient)
        return [0 if kind == "free" else rest[0] for kind, *rest in events]

    torch.manual_seed(0)
    tensors = [torch.randn(64, 64).half(), torch.rand(64, 64)]
    tensors += [torch.rand(64, 64, dtype=dtype) for dtype in weights]
    on_cpu = tensors[0].clone().requires_grad_()
    F.binary_cross_entropy_with_logits(on_cpu, *tensors[1:], reduction="none").sum().backward()
    with simulate("80GiB", compute=compute):
        x, *others = [tensor.cuda() for tensor in tensors]
        found = backward(x.requires_grad_(), *others)
        if compute:
            assert torch.equal(x.grad.cpu(), on_cpu.grad)
    assert [size for size in found if size] == [64 * 64 * 2]


@computed_or_dry
@pytest.mark.parametrize(
    "sizes", [((4,), (4,), (2, 4)), ((4,), (1,), (2, 4)), ((2, 4), (4,), (4,))]
)
def test_a_mask_that_cannot_hold_both_bounds_is_an_error_as_on_a_cpu(sizes, compute):
    def error(device):
        x, low, high = [torch.ones(size, device=device) for size in sizes]
        try:
            x.requires_grad_().clamp(low, high).sum().backward()
        except RuntimeError as error:
            return str(error)[: None if compute else len("output with shape")]
        return ""

    expected = error("cpu")
    assert bool(expected) == (sizes[0] == (4,)) or RELEASE >= (2, 14)
    with simulate("24GiB", compute=compute):
        assert error("cuda") == expected


@pytest.mark.parametrize("reduction", ["amax", "amin"])
def test_the_gradient_of_an_extreme_goes_to_all_that_have_it(reduction):
    def gradients(device):
        x = torch.tensor([2.0], device=device, requires_grad=True)
        y = torch.tensor([2.0, 2.0], device=device, requires_grad=True)
        x.index_reduce(0, torch.tensor([0, 0], device=device), y, reduction).sum().backward()
        return [*x.grad.tolist(), *y.grad.tolist()]

    expected = gradients("cpu")
    assert expected == pytest.approx([1 / 3] * 3)
    with simulate("80GiB"):
        assert gradients("cuda") == expected


def test_a_function_of_the_programs_keeps_what_it_made():
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            zeros = torch.zeros_like(gradient)
            added = zeros.index_add(0, indices(1), gradient[:1])
            assert zeros.sum() == 0
            return added

    with simulate("80GiB"):
        x = rand(4, 4).requires_grad_()
        Own.apply(x).sum().backward()
        assert x.grad.sum() == 4


@computed_or_dry
def test_two_sparse_gradients_of_one_parameter(compute):
    with simulate("80GiB", compute=compute):
        layer = nn.Embedding(10, 4, sparse=True).cuda()
        rows = indices(1, 2)
        (layer(rows).sum() + 2 * layer(rows).sum()).backward()
        gradient = layer.weight.grad
        assert gradient.is_sparse
        assert gradient.is_cuda
        assert (gradient._nnz(), gradient._values().device.type) == (4, "cuda")
        if compute:
            assert gradient.to_dense().sum(1).tolist() == [0, 12, 12, 0, 0, 0, 0, 0, 0, 0]
