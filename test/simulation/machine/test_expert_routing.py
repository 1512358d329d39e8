"""A dry run whose tokens choose experts needs what a run needs in which they choose the same."""

from __future__ import annotations

import pytest
import torch
from support.op_memory import events
from torch.nn import functional

from pytorch_memlab import simulate
from pytorch_memlab.simulation.inspect import ExpertGroup, ExpertRouting, active
from pytorch_memlab.simulation.machine.expert_routing import chosen_experts

TOKENS, WIDTH, EXPERTS, CHOICES = 96, 32, 8, 2


@pytest.mark.parametrize(
    ("load", "own", "counts"),
    [
        (1.0, range(8), [24] * 8),
        (1.0, range(2, 4), [24] * 8),
        (2.5, range(2, 4), [12, 12, 60, 60, 12, 12, 12, 12]),
        (0.5, range(4), [12] * 4 + [36] * 4),
        (4.0, range(7, 8), [96 / 7] * 7 + [96]),  # each token once: half of all choices
        (0.001, range(2), [0] * 2 + [32] * 6),
        (1.0, range(0), [24] * 8),
    ],
)
def test_the_experts_of_a_rank_get_their_share_times_the_load(load, own, counts):
    chosen = chosen_experts(TOKENS, CHOICES, EXPERTS, own, load)
    found = torch.bincount(chosen.flatten(), minlength=EXPERTS)
    assert all(abs(one - count) < 1 for one, count in zip(found.tolist(), counts, strict=True))
    assert all(len(set(row)) == CHOICES for row in chosen.tolist())


@pytest.mark.parametrize(
    ("group", "choices", "most"),
    [
        (ExpertGroup(0, 4), {(2, 8)}, 4.0),
        (ExpertGroup(0, 8), {(2, 8)}, 4.0),  # at most half of the choices of each token
        (ExpertGroup(0, 8), {(1, 8)}, 8.0),
        (ExpertGroup(1, 8), {(4, 8), (8, 256)}, 8.0),
        (ExpertGroup(0, 16), {(1, 8)}, 0.0),  # it has no expert
    ],
)
def test_how_large_a_load_can_be(group, choices, most):
    assert group.most_load(choices) == most


def route(scores):
    """The tokens of experts 2 and 3, chosen as programs choose and count them."""
    weights, chosen = scores.softmax(-1).topk(CHOICES)
    counts = functional.one_hot(chosen, EXPERTS).sum((0, 1))
    by_expert = chosen.flatten().argsort(stable=True)
    first, second = counts[:2].tolist()
    own = sum(counts[2:4].tolist())
    rows = by_expert[first + second : first + second + own] // CHOICES
    tokens = torch.ones(TOKENS, WIDTH, device="cuda")[rows]
    return tokens.relu(), weights.sum(), torch.where(chosen == 2)[0]


def scores_without_values():
    """Those of a router with 1,024 features: more weights than a dry run computes with."""
    return torch.randn(TOKENS, 1024, device="cuda") @ torch.randn(1024, EXPERTS, device="cuda")


def dry_events(load, make_scores, *, decides):
    def with_load(scores):
        active.values().routing = ExpertRouting(load, ExpertGroup(1, 4), decides=decides)
        return route(scores)

    return events(with_load, make_scores, compute=False)


@pytest.mark.parametrize("load", [0.5, 1.0, 2.5, 4.0])
def test_every_request_is_that_of_a_run_with_these_choices(load):
    chosen = chosen_experts(TOKENS, CHOICES, EXPERTS, range(2, 4), load)
    weights = torch.tensor([[2.0, 1.0]]).expand(TOKENS, CHOICES)
    scores = torch.zeros(TOKENS, EXPERTS).scatter_(1, chosen, weights)
    computed = events(route, lambda: scores.cuda())
    assert dry_events(load, scores_without_values, decides=False) == computed
    # Where a load is given, it holds for scores with values too.
    with_values = dry_events(load, lambda: torch.randn(TOKENS, EXPERTS).cuda(), decides=True)
    assert with_values == computed
    rows = round(load * TOKENS * CHOICES / 4)
    assert 4 * rows * WIDTH in computed


@pytest.mark.parametrize(
    "choose",
    [
        lambda scores: scores.argmax(-1),
        lambda scores: scores.argmax(1, keepdim=True).flatten(),
        lambda scores: scores.max(dim=-1).indices,
        lambda scores: scores.max(1, keepdim=True)[1].flatten(),
        lambda scores: scores.topk(1, dim=1)[1].flatten(),
    ],
)
def test_a_token_with_one_expert_chooses_it_in_each_of_these_ways(choose):
    with simulate("a100", compute=False) as machine:
        machine.values.routing = routing = ExpertRouting(2.0, ExpertGroup(3, 4))
        chosen = choose(scores_without_values())
        assert chosen.bincount(minlength=EXPERTS).tolist() == [8] * 6 + [24] * 2
    assert routing.choices == {(1, EXPERTS)}
    assert machine.data_dependent_reads == ()


@pytest.mark.parametrize(
    "call",
    [
        lambda scores: scores.max(),
        lambda scores: scores.argmax(),
        lambda scores: scores.max(dim=0),
        lambda scores: scores.topk(2, largest=False),
        lambda scores: torch.max(scores, scores),
        lambda scores: scores[:, :1].argmax(-1),
        lambda scores: torch.arange(8.0, device="cuda").topk(2),  # these have values
        lambda scores: scores.cpu().topk(2),
        lambda scores: scores.long().topk(2),
        lambda scores: scores.new_empty(0, 8).topk(2),
        lambda scores: scores.new_empty(2, 5000).topk(2),  # of a vocabulary
    ],
)
def test_what_is_no_choice_of_experts_stays_as_it_is(call):
    with simulate("a100", compute=False) as machine:
        machine.values.routing = routing = ExpertRouting()
        call(scores_without_values())
    assert not routing.choices
