"""Tensors that a program forgot to move: PyTorch's errors on a GPU."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

from pytorch_memlab import simulate

MIXED = "found at least two devices, cuda:0 and cpu"
INDICES = r"indices should be either on cpu or on the same device as the indexed tensor \(cpu\)"


def zeros(*shape):
    return torch.zeros(*shape, device="cuda")


def first():
    return torch.tensor([0], device="cuda")


def assign(target, index, value):
    target[index] = value


CALLS = {
    "a CPU tensor read at indices of a GPU": (INDICES, lambda: torch.zeros(3)[first()]),
    "a CPU tensor read by a mask of a GPU": (INDICES, lambda: torch.zeros(1)[first() == 0]),
    "a CPU tensor written": (INDICES, lambda: assign(torch.zeros(3, 3), (first(),) * 2, 1.0)),
    "values of the CPU": (MIXED, lambda: assign(zeros(3), torch.tensor([0, 2]), torch.ones(2))),
    "a value of the CPU": (MIXED, lambda: zeros(3).index_put_((first(),), torch.ones(1))),
    "lengths": (
        "'lengths' argument should be a 1D CPU int64 tensor, but got 1D cuda:0 Long tensor",
        lambda: pack_padded_sequence(zeros(3, 1, 4), first() + 3),
    ),
    "a mask of attention": (
        MIXED,
        lambda: functional.scaled_dot_product_attention(
            *[zeros(1, 1, 4, 8)] * 3, attn_mask=torch.zeros(4, 4)
        ),
    ),
    "places to split at": (
        "tensor_split expected tensor_indices_or_sections to be on cpu, but it's on cuda:0",
        lambda: torch.tensor_split(zeros(3), first()),
    ),
    "targets": (
        MIXED,
        lambda: functional.binary_cross_entropy_with_logits(zeros(2, 3), torch.zeros(2, 3)),
    ),
    "signs": (
        MIXED,
        lambda: functional.margin_ranking_loss(zeros(3), zeros(3), torch.ones(3)),
    ),
    "vectors": (MIXED, lambda: functional.cosine_similarity(zeros(2, 3), torch.ones(2, 3))),
    "a norm's weight": (
        MIXED,
        lambda: functional.instance_norm(zeros(2, 3, 4), weight=torch.ones(3)),
    ),
    "a signal": (
        MIXED,
        lambda: torch.stft(torch.zeros(64), 16, window=zeros(16) + 1, return_complex=True),
    ),
    "counts": (MIXED, lambda: zeros(3).repeat_interleave(torch.tensor([1, 2, 3]))),
    "quantiles": (
        "q tensor must be on the same device as the input tensor",
        lambda: zeros(3).quantile(torch.tensor([0.1, 0.2])),
    ),
    "weights of classes": (
        MIXED,
        lambda: functional.binary_cross_entropy_with_logits(
            zeros(2, 3), zeros(2, 3), pos_weight=torch.ones(3)
        ),
    ),
}


@computed_or_dry
@pytest.mark.parametrize("name", CALLS)
def test_what_stayed_behind_is_refused(name, compute):
    message, call = CALLS[name]
    with simulate("1GiB", compute=compute), pytest.raises(RuntimeError, match=message):
        call()


@computed_or_dry
def test_what_may_stay_behind(compute):
    """Indices, masks, numbers, lengths: PyTorch moves them, or wants them there."""
    with simulate("1GiB", compute=compute):
        x = zeros(3)
        assert x[torch.tensor([0])].is_cuda
        assert x[torch.tensor([True, False, True])].is_cuda
        assign(x, torch.tensor([0]), torch.tensor(1.0))
        assign(x, first(), torch.ones(1))  # Python's assignment drops the dimension
        assign(x, x > 0, torch.ones(1))  # one number fills what a mask selects
        assert len(x.tensor_split(torch.tensor([1, 2]))) == 3
        assert pack_padded_sequence(zeros(3, 1, 4), torch.tensor([3])).data.is_cuda
        functional.binary_cross_entropy_with_logits(x, x, pos_weight=torch.tensor(2.0))


@computed_or_dry
def test_indices_on_another_gpu_are_refused(compute):
    with simulate("24GiB", count=2, compute=compute):
        x = zeros(3, 3)
        other = torch.tensor([0], device="cuda:1")
        allocated = torch.cuda.memory_allocated()
        for call in (
            lambda: x[other],
            lambda: x[torch.tensor([0]), other],
            lambda: x[:1, 0][other == 0],
            lambda: assign(x, (other, other), 1.0),
            lambda: x.index_put_((first(), other), zeros(1)),
        ):
            with pytest.raises(RuntimeError, match=INDICES.replace("(cpu", "(cuda:0")):
                call()
        assert torch.cuda.memory_allocated() == allocated
        assert x[torch.tensor([0])].shape == (1, 3)


def number(value=1.0):
    return torch.tensor(value)


OPS_THAT_TAKE_NO_NUMBER_OF_THE_CPU = {
    "a sum on the CPU": lambda: number().add_(zeros(3).sum()),
    "a result": lambda: torch.add(zeros(()), zeros(()), out=number()),
    "a product": lambda: torch.dot(zeros(3), zeros(3), out=number()),
    "a bound": lambda: zeros(3).clamp(min=number()),
    "an addend": lambda: torch.addmm(number(), zeros(3, 3), zeros(3, 3)),
    "what is looked for": lambda: torch.isin(zeros(3), number()),
    "a position": lambda: zeros(3).take(number(1)),
    "a position to write to": lambda: zeros(3).put(number(1), zeros(())),
    "a word": lambda: functional.embedding(number(1), zeros(3, 3)),
    "a target": lambda: functional.nll_loss(zeros(3), number(1)),
    "a target of all": lambda: functional.l1_loss(zeros(3), number()),
    "a tolerance": lambda: torch.linalg.pinv(zeros(3, 3), rcond=number()),
    "a relative tolerance": lambda: torch.linalg.pinv(zeros(3, 3), rtol=number()),
    "a deviation": lambda: torch.normal(zeros(3), number()),
    "the other part": lambda: torch.complex(zeros(()), number()),
    "steps of an optimizer": lambda: torch._fused_adam_(
        *[[zeros(3)]] * 4, [], [number()], lr=0.1, beta1=0.9, beta2=0.9, weight_decay=0.0,
        eps=1e-8, amsgrad=False, maximize=False,
    ),
}  # fmt: skip


@computed_or_dry
@pytest.mark.parametrize("name", OPS_THAT_TAKE_NO_NUMBER_OF_THE_CPU)
def test_a_number_of_the_cpu_is_refused_where_kernels_compare_devices(name, compute):
    with simulate("1GiB", compute=compute), pytest.raises(RuntimeError, match=MIXED):
        OPS_THAT_TAKE_NO_NUMBER_OF_THE_CPU[name]()


@computed_or_dry
def test_a_number_of_the_cpu_is_taken_where_kernels_take_it(compute):
    with simulate("1GiB", compute=compute):
        x = zeros(3)
        for result in (
            x + number(),
            number() + x,
            x.mul_(number()),
            torch.where(x > 0, x, number()),
            torch.lerp(x, x, number()),
            x.masked_fill(x > 0, number()),
            x.index_fill(0, first(), number()),
            x.fill_(number()),
        ):
            assert (result.device.type, result.shape) == ("cuda", (3,))
        on_cpu = number()
        on_cpu.copy_(zeros(()))
        assert on_cpu.fill_(zeros(())) is on_cpu
        assert torch.zeros(3).fill_(zeros(())).device.type == on_cpu.device.type == "cpu"
