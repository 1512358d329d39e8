"""Rules inside the simulation, each by itself: what a call is given, keeps and leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytorch_memlab import simulate
from pytorch_memlab.history.earlier_memory import EarlierMemory
from pytorch_memlab.history.model import HOST, Category, Segment, UsedBlock
from pytorch_memlab.line_profiler.compiled_lines import _has
from pytorch_memlab.profiles.cells import growth
from pytorch_memlab.simulation.dry_run.expert_choices import choose_experts
from pytorch_memlab.simulation.dry_run.files.processes import _Commands
from pytorch_memlab.simulation.ops.core.op_info import op_info
from pytorch_memlab.simulation.torch_api.distributed.sharded_tensors import _of_each_rank

MIB = 2**20


# Experts


@pytest.mark.parametrize(
    ("op", "arguments", "shape"),
    [
        (torch.ops.aten.topk.default, (2,), (5, 2)),  # has no ``keepdim``, and keeps it
        (torch.ops.aten.argmax.default, (-1,), (5, 1)),
        (torch.ops.aten.argmax.default, (-1, True), (5, 1)),
    ],
)
def test_choices_of_experts_are_columns_for_each_token(op, arguments, shape):
    scores = torch.arange(40.0).view(5, 8)
    chosen: list[tuple[tuple[int, ...], int]] = []
    held: list[torch.UntypedStorage] = []
    values: Any = SimpleNamespace(
        routing=SimpleNamespace(
            choose=lambda indices, experts: chosen.append((tuple(indices.shape), experts))
        ),
        hold=held.append,
    )
    result = op(scores, *arguments)
    choose_experts(values, 8, op_info(op), (scores, *arguments), {}, result)
    assert chosen == [(shape, 8)]
    indices = result if isinstance(result, torch.Tensor) else result[-1]
    assert [storage.data_ptr() for storage in held] == [indices.untyped_storage().data_ptr()]


# Files and commands


def test_a_command_starts_as_it_is_while_no_path_is_translated():
    begun: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    init: Callable[..., None] = lambda *args, **options: begun.append((args, options))  # noqa: E731
    overlay: Any = SimpleNamespace(is_on=False)
    _Commands(overlay).popen(init, "process", ["ls"], cwd="/", shell=True)
    assert begun == [(("process", ["ls"]), {"cwd": "/", "shell": True})]


# Several GPUs and ranks


def test_groups_wait_ten_minutes_as_with_nccl():
    c10d = pytest.importorskip("torch.distributed.distributed_c10d")
    with simulate("1GiB", compute=False):
        assert c10d.default_pg_nccl_timeout == timedelta(minutes=10)


def shard(size: list[int], offsets: list[int], whole: list[int]) -> Any:
    placement = torch.distributed._remote_device("rank:0/cuda:0")
    part = SimpleNamespace(shard_sizes=size, shard_offsets=offsets, placement=placement)
    return SimpleNamespace(size=whole, shards_metadata=[part])


def test_the_shards_of_other_ranks_follow_those_of_one_dimension_and_no_others():
    found = _of_each_rank([shard([3, 4], [0, 0], [8, 4]), None, None])
    parts = [metadata.shards_metadata[0] for metadata in found]
    assert [(part.shard_offsets, part.shard_sizes) for part in parts] == [
        ([0, 0], [3, 4]),
        ([3, 0], [3, 4]),
        ([6, 0], [2, 4]),
    ]
    assert [part.placement.rank() for part in parts] == [0, 1, 2]
    of_two = [shard([4, 2], [0, 0], [8, 4]), None]
    assert _of_each_rank(of_two) is of_two  # their order is not known


# Errors


@pytest.mark.parametrize("within", [nullcontext, torch._C.DisableTorchFunction])
def test_a_call_that_fails_keeps_no_tensor_while_its_error_lives(within):
    with simulate("1GiB", compute=False):
        x = torch.empty(MIB, device="cuda")
        with pytest.raises(RuntimeError) as caught, within():
            torch.mm(x, x)
        assert torch.cuda.memory_allocated() == 4 * MIB
        del x
        assert torch.cuda.memory_allocated() == 0
        assert str(caught.value) == "a must be 2D"


# What the profiler and the history know of it


def test_a_line_is_that_of_a_function_by_its_file_its_name_and_its_number():
    def one() -> int:
        print("another line")
        return 1

    code, first = one.__code__, one.__code__.co_firstlineno
    assert _has(code, (code.co_filename, first + 2, "one"))
    assert not _has(code, (code.co_filename, first + 9, "one"))
    assert not _has(code, (code.co_filename, first + 2, "other"))
    assert not _has(code, ("other.py", first + 2, "one"))


def test_a_block_of_the_host_is_a_segment_by_itself():
    block = UsedBlock(4096, 512, 500, None, category=Category.OTHERS)
    host = [Segment(4096, 512, is_expandable=False, blocks=(block,))]
    assert EarlierMemory(HOST, host).segments(lambda number: number) == host


def test_growth_of_a_gpu_that_was_there_before_is_what_came_to_it():
    def state(resident: int, **gpus: int) -> Any:
        each = [SimpleNamespace(index=int(name[3:]), allocated=size) for name, size in gpus.items()]
        return SimpleNamespace(resident=resident, gpus=each)

    before, after = state(100, gpu0=10, gpu1=7), state(130, gpu0=15, gpu1=4, gpu2=3)
    assert growth(before, after) == (30, {0: 5, 1: -3, 2: 3})
