"""A bare number stands for a GPU wherever PyTorch takes it for one."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from pytorch_memlab import simulate


@pytest.mark.parametrize(
    "move",
    [
        lambda made: made.to(1),
        lambda made: made.to(1, torch.float64),
        lambda made: made.to(device=1),
        lambda made: made.to(device=1, dtype=torch.float64),
        lambda made: made.to(1, non_blocking=True),
    ],
)
@pytest.mark.parametrize(
    ("make", "tensor_of"),
    [
        (lambda: nn.Linear(2, 2), lambda made: made.weight),
        (lambda: pack_sequence([torch.ones(3, 2)]), lambda made: made.data),
        (lambda: torch.ones(2), lambda made: made),
    ],
)
def test_it_moves_there(make, tensor_of, move):
    with simulate("1GiB", count=2):
        moved = tensor_of(move(make()))
        assert moved.device == torch.device("cuda", 1)
        assert torch.cuda.memory_allocated(1) > 0
        assert torch.cuda.memory_allocated(0) == 0


def test_there_must_be_such_a_gpu():
    with simulate("1GiB"), pytest.raises(RuntimeError, match="invalid device ordinal: cuda:1"):
        nn.Linear(2, 2).to(1)
