"""Random numbers on simulated GPUs: each GPU's generator governs its draws, and no other does."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from pytorch_memlab import simulate


@pytest.fixture(autouse=True)
def simulated():
    with simulate("a100", count=2):
        yield


def ones(*size):
    return torch.ones(size or (64,), device="cuda")


def attention(dropout):
    query = ones(1, 2, 16, 8).requires_grad_()
    result = F.scaled_dot_product_attention(query, query, query, dropout_p=dropout)
    return torch.stack([result, *torch.autograd.grad(result.square().sum(), query)])


def recurrent():
    layers = nn.LSTM(3, 3, 2, dropout=0.5, device="cuda")
    for parameter in layers.parameters():
        nn.init.constant_(parameter, 0.3)
    return layers(ones(4, 1, 3))[0]


DRAWS = {
    "rand": lambda: torch.rand(64, device="cuda"),
    "randn": lambda: torch.randn(64, device="cuda"),
    "randint": lambda: torch.randint(99, (64,), device="cuda"),
    "randint between": lambda: torch.randint(3, 99, (64,), device="cuda"),
    "randperm": lambda: torch.randperm(64, device="cuda"),
    "rand_like": lambda: torch.rand_like(ones()),
    "randint_like": lambda: torch.randint_like(ones(), 99),
    "normal": lambda: torch.normal(0.0, 1.0, (64,), device="cuda"),
    "normal of tensors": lambda: torch.normal(ones(), ones()),
    "normal_": lambda: ones().normal_(),
    "uniform_": lambda: ones().uniform_(),
    "bernoulli_": lambda: ones().bernoulli_(0.5),
    "bernoulli": lambda: torch.bernoulli(ones() / 2),
    "exponential_": lambda: ones().exponential_(),
    "random_": lambda: ones().random_(),
    "poisson": lambda: torch.poisson(ones() * 9),
    "multinomial": lambda: torch.multinomial(ones(), 64),
    "dropout": lambda: F.dropout(ones()),
    "dropout of channels": lambda: F.dropout2d(ones(1, 64, 2, 2)),
    "alpha_dropout": lambda: F.alpha_dropout(ones(), training=True),
    "rrelu": lambda: F.rrelu(-ones(), training=True),
    "attention": lambda: attention(0.5),
    "lstm": lambda: recurrent(),
    "a distribution": lambda: torch.distributions.Gamma(ones(), ones()).sample(),
    "gumbel": lambda: F.gumbel_softmax(ones(), hard=True),
    "a layer": lambda: nn.Linear(8, 8, device="cuda").weight.detach(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_follows_the_gpus_seed_and_leaves_the_cpus_generator(name):
    draw = DRAWS[name]
    on_cpu = torch.get_rng_state()
    torch.cuda.manual_seed(2)
    first, second = draw(), draw()
    torch.cuda.manual_seed(2)
    assert torch.equal(draw(), first)
    assert torch.equal(draw(), second)
    assert not torch.equal(first, second)
    torch.cuda.manual_seed(3)
    assert not torch.equal(draw(), first)
    assert torch.equal(torch.get_rng_state(), on_cpu)


def test_draws_on_the_cpu_leave_the_gpus_generator():
    layers = nn.LSTM(3, 3, 2, device="cuda")
    before = torch.cuda.get_rng_state()
    torch.rand(3), torch.randperm(4), F.dropout(torch.ones(3))
    attention(0.0), layers(ones(4, 1, 3))  # nothing is drawn for these
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_a_state_is_put_back():
    torch.cuda.manual_seed(7)
    state = torch.cuda.get_rng_state()
    assert (state.numel(), state.dtype, state.device.type) == (16, torch.uint8, "cpu")
    first = torch.rand(4, device="cuda")
    assert not torch.equal(torch.cuda.get_rng_state(), state)
    later = torch.cuda.get_rng_state()
    second = torch.rand(4, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="cuda"), first)
    torch.cuda.set_rng_state(later)
    assert torch.equal(torch.rand(4, device="cuda"), second)
    for wrong, error in (
        (torch.get_rng_state(), RuntimeError),
        (torch.zeros(16), TypeError),
        (torch.zeros(16, dtype=torch.uint8, device="cuda"), TypeError),
    ):
        with pytest.raises(error, match="RNG state"):
            torch.cuda.default_generators[0].set_state(wrong)


def test_each_gpu_has_its_generator():
    def draw():
        return [torch.rand(4, device=f"cuda:{gpu}").tolist() for gpu in (0, 1)]

    torch.manual_seed(4)
    one, other = draw()
    assert one == other
    torch.cuda.manual_seed_all(4)
    assert draw() == [one, other]
    assert [torch.cuda.default_generators[gpu].initial_seed() for gpu in (0, 1)] == [4, 4]
    torch.cuda.manual_seed(5)
    assert (torch.cuda.initial_seed(), torch.cuda.default_generators[1].initial_seed()) == (5, 4)
    states = torch.cuda.get_rng_state_all()
    later = draw()
    torch.cuda.set_rng_state_all(states)
    assert draw() == later
    torch.cuda.seed_all()
    assert torch.cuda.initial_seed() not in (4, 5)
    assert torch.equal(*torch.cuda.get_rng_state_all())


def test_a_seed_given_before_the_simulation_holds_in_it():
    drawn = []
    for _ in range(2):
        torch.manual_seed(11)
        with simulate("t4"):
            drawn.append(torch.rand(4, device="cuda").tolist())
    assert drawn[0] == drawn[1]


def test_generators_of_the_programs():
    generator = torch.Generator("cuda:1").manual_seed(3)
    assert isinstance(generator, torch.Generator)
    assert str(generator.device) == "cuda:1"
    default = torch.cuda.get_rng_state(1)
    first = torch.rand(4, device="cuda:1", generator=generator)
    assert torch.equal(torch.cuda.get_rng_state(1), default)
    assert generator.get_offset() == 4
    for same in (copy.deepcopy(generator), pickle.loads(pickle.dumps(generator))):
        assert (str(same.device), same.initial_seed(), same.get_offset()) == ("cuda:1", 3, 4)
    clone = generator.clone_state()
    second = ones().to("cuda:1").normal_(generator=generator)
    assert torch.equal(ones().to("cuda:1").normal_(generator=clone), second)
    generator.set_offset(0)
    assert torch.equal(torch.rand(4, device="cuda:1", generator=generator), first)
    with pytest.raises(RuntimeError, match="multiple of 4"):
        generator.set_offset(3)
    cpu = pickle.loads(pickle.dumps(torch.Generator().manual_seed(8)))
    assert (cpu.device.type, cpu.initial_seed()) == ("cpu", 8)


def test_generators_share_a_state():
    first, second = (torch.Generator("cuda").manual_seed(seed) for seed in (1, 2))
    assert second.graphsafe_set_state(first.graphsafe_get_state()) is second
    second.manual_seed(7)
    torch.rand(4, device="cuda", generator=first)
    assert (first.initial_seed(), second.get_offset()) == (7, 4)


@pytest.mark.parametrize(("device", "other"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_a_generator_of_another_device_is_refused(device, other):
    words = f"Expected a '{device}' device type for generator but found '{other}'"
    with pytest.raises(RuntimeError, match=words):
        torch.rand(2, device=device, generator=torch.Generator(other))
    with pytest.raises(RuntimeError, match=words):
        torch.ones(2, device=device).normal_(generator=torch.Generator(other))


def test_what_draws_twice_draws_the_same():
    torch.cuda.manual_seed(1)
    with torch.random.fork_rng(devices=[0]):
        inside = torch.rand(4, device="cuda")
    assert torch.equal(torch.rand(4, device="cuda"), inside)
    masks = []

    def layer(x):
        dropped = F.dropout(x)
        masks.append(dropped == 0)
        return dropped * x

    x = ones().requires_grad_()
    checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert torch.equal(*masks)
    checkpoint(layer, x, use_reentrant=False, preserve_rng_state=False).sum().backward()
    assert not torch.equal(*masks[2:])


def test_a_dry_run_draws_without_values():
    with simulate("a100", compute=False):
        before = torch.cuda.default_generators[0].get_offset()
        torch.cuda.manual_seed(3)
        order = torch.randperm(10, device="cuda")
        torch.cuda.manual_seed(3)
        assert torch.equal(order, torch.randperm(10, device="cuda"))
        huge = torch.randn(2**30, device="cuda", generator=torch.Generator("cuda"))
        assert F.dropout(huge).nbytes == 4 * 2**30
        assert before == 0
        assert torch.cuda.default_generators[0].get_offset() == 8
