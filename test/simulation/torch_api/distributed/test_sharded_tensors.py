"""Sharded tensors of one simulated rank: they know where the shards of the other ranks lie."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pytorch_memlab import simulate

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed"),
    pytest.mark.filterwarnings("ignore:one rank of"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.mark.parametrize(
    ("rank", "begin", "size", "whole"),
    [
        (0, [0, 0], [3, 2], [10, 2]),
        (2, [6, 0], [3, 2], [10, 2]),
        (3, [9, 0], [1, 2], [10, 2]),  # less than the others have
        (1, [0, 4], [5, 4], [5, 14]),
        (1, [4, 0], [4, 2], [8, 2]),  # the last of those that have any
        (0, [0, 0], [2, 2], [2, 2]),  # all of it
    ],
)
def test_parts_of_all_ranks_cover_the_tensor(monkeypatch, rank, begin, size, whole):
    from torch.distributed._shard import sharded_tensor

    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "4")
    with simulate("t4", context=0):
        dist.init_process_group("nccl")
        local = torch.ones(size, device="cuda")
        before = torch.cuda.memory_allocated()
        shard = sharded_tensor.Shard.from_tensor_and_offsets(local, begin, rank)
        made = sharded_tensor.init_from_local_shards([shard], whole)
        assert torch.cuda.memory_allocated() == before
        dim = int(size[0] == whole[0])
        part = begin[dim] // rank if rank else size[dim]
        assert [
            (one.placement.rank(), one.shard_offsets[dim], one.shard_sizes[dim])
            for one in made.metadata().shards_metadata
        ] == [
            (number, start, min(part, whole[dim] - start))
            for number, start in enumerate(range(0, whole[dim], part))
        ]
        assert made.local_tensor() is local


def test_a_state_dict_of_local_shards_is_saved_and_loaded(monkeypatch):
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with simulate("t4"):
        dist.init_process_group("nccl")
        model = FullyShardedDataParallel(nn.Linear(8, 8, bias=False).cuda())
        with FullyShardedDataParallel.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
            (state,) = model.state_dict().values()
            assert state.size() == (64,)
            assert state.local_tensor().shape == (16,)
            model.load_state_dict(model.state_dict())
