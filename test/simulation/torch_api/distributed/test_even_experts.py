"""In a dry run of one rank of many, tokens choose their experts evenly."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist

from pytorch_memlab import simulate
from pytorch_memlab.errors import AssumedValueError

MIB = 2**20

pytestmark = pytest.mark.skipif(
    not dist.is_available(), reason="this torch has no torch.distributed"
)

EVENLY = "tokens choose their experts evenly"


@pytest.fixture
def rank_of_four(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")


def exchange(count=4096, experts=8):
    """Tokens of 4 KiB go to the ranks of their experts; the splits, and what arrives."""
    dist.init_process_group("nccl")
    tokens = torch.empty(count, 1024, device="cuda")
    counts = torch.randn(count, experts, device="cuda").argmax(-1).bincount(minlength=experts)
    received = torch.empty_like(counts)
    dist.all_to_all_single(received, counts)
    inputs = counts.view(4, -1).sum(1).tolist()
    outputs = received.view(4, -1).sum(1).tolist()
    mine = torch.empty(sum(outputs), 1024, device="cuda")
    dist.all_to_all_single(mine, tokens, outputs, inputs)
    return inputs, outputs, mine


def messages(caught):
    return [str(one.message) for one in caught if str(one.message).startswith(EVENLY)]


def test_splits_are_even_and_one_warning_says_so(rank_of_four):
    with warnings.catch_warnings(record=True) as caught, simulate("24GiB", compute=False):
        warnings.simplefilter("always")
        inputs, outputs, mine = exchange()
        assert inputs == outputs == [1024] * 4
        # The tokens, and as many that arrive: the scores and counts are in a segment of 2 MiB.
        assert mine.untyped_storage().nbytes() == 16 * MIB
        assert torch.cuda.memory_allocated() == 16 * MIB
        assert torch.cuda.max_memory_reserved() == 34 * MIB
        again = torch.empty_like(mine)
        dist.all_to_all_single(again, mine, outputs, inputs)
        dist.destroy_process_group()
    [message] = messages(caught)
    assert message == (
        "tokens choose their experts evenly, as their scores are not known: pytorch-memlab fit"
        " --expert-load 1.0,2.5 shows what a rank needs whose experts get more"
    )
    assert caught[-1].filename == __file__


@pytest.mark.filterwarnings("ignore:one rank of")
def test_splits_that_no_token_chose_have_no_warning(rank_of_four):
    with warnings.catch_warnings(record=True) as caught, simulate("24GiB", compute=False):
        warnings.simplefilter("always")
        dist.init_process_group("nccl")
        x = torch.empty(4, device="cuda")
        dist.all_to_all_single(torch.empty_like(x), x, [1] * 4, [1] * 4)
        dist.destroy_process_group()
    assert messages(caught) == []


@pytest.mark.filterwarnings("ignore:one rank of")
def test_strict_still_refuses_to_read_splits(rank_of_four):
    with simulate("24GiB", compute=False, strict=True):
        with pytest.raises(AssumedValueError, match="bincount reads values that a dry run does"):
            exchange()
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:one rank of")
def test_scores_with_values_decide(rank_of_four):
    with simulate("24GiB", compute=False):
        dist.init_process_group("nccl")
        scores = torch.tensor([[0.0, 1.0]] * 4, device="cuda")
        assert scores.argmax(-1).tolist() == [1] * 4
        dist.destroy_process_group()


def test_one_process_alone_has_no_choices():
    with simulate("24GiB", compute=False):
        chosen = torch.empty(4096, 8, device="cuda").argmax(-1)
        assert chosen.bincount(minlength=8).tolist() == [0] * 8
