"""Programs of many ranks: one of them is simulated, and its memory is that of a real one."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from unittest import TestCase

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pytorch_memlab import simulate
from pytorch_memlab.devices import simulated_machine
from pytorch_memlab.errors import UnsupportedCUDACallError
from pytorch_memlab.simulation.ops.norms.batch_norm import staging_rows

MIB = 2**20

KEEPS_FLOATS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
"""Groups with NCCL are those of ``nccl2/ProcessGroupNCCL.cpp``."""

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed"),
    pytest.mark.filterwarnings("ignore:one rank of"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

WITH_VALUES = pytest.mark.parametrize("rank_of_eight", [True], ids=["computed"], indirect=True)


@pytest.fixture(params=[True, False], ids=["computed", "shapes"])
def rank_of_eight(request, monkeypatch) -> Iterator[bool]:
    """Rank 3 of 8; whether ops compute."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with simulate("24GiB", compute=request.param):
        dist.init_process_group("nccl")
        try:
            yield request.param
        finally:
            dist.destroy_process_group()


def square(count: int = 1) -> nn.Sequential:
    """Layers of 1 MiB each."""
    return nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(count)]).cuda()


def make_workspaces() -> None:
    """Those of cuBLAS are there, and stay, once a forward and a backward pass have run."""
    square()(torch.ones(2, 512, device="cuda")).sum().backward()


def test_the_group_is_as_the_environment_says(rank_of_eight):
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (3, 8, "nccl")
    assert dist.is_nccl_available()
    assert torch.cuda.nccl.version() == (2, 29, 7)  # of the wheel of torch 2.13.0
    gathered = [None] * 8
    dist.all_gather_object(gathered, {"rank": 3})
    assert gathered == [{"rank": 3}] * 8
    half = dist.new_group([2, 3])
    assert (dist.get_rank(half), dist.get_world_size(half)) == (1, 2)


@WITH_VALUES
def test_collectives_return_what_equal_ranks_give(rank_of_eight):
    x = torch.arange(8.0, device="cuda")
    total = x.clone()
    dist.all_reduce(total)
    assert total.tolist() == [8 * n for n in range(8)]
    for operation in (dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.MIN):
        same = x.clone()
        dist.all_reduce(same, operation)
        assert torch.equal(same, x)
    power = x.clone()
    dist.all_reduce(power, dist.ReduceOp.PRODUCT)
    assert power.tolist() == [n**8 for n in range(8)]
    for root, expected in ((3, total), (0, x)):
        reduced = x.clone()
        dist.reduce(reduced, root)
        assert torch.equal(reduced, expected)
    parts = [torch.empty(8, device="cuda") for _ in range(8)]
    dist.all_gather(parts, x)
    assert all(torch.equal(part, x) for part in parts)
    whole = torch.empty(64, device="cuda")
    dist.all_gather_into_tensor(whole, x)
    assert torch.equal(whole, x.repeat(8))
    part = torch.empty(1, device="cuda")
    dist.reduce_scatter_tensor(part, x)
    assert part.item() == 8 * 3
    dist.reduce_scatter(part, list(x.split(1)), dist.ReduceOp.AVG)
    assert part.item() == 3
    dist.scatter(part, list(x.split(1)), src=3)
    assert part.item() == 3
    swapped = torch.empty(8, device="cuda")
    dist.all_to_all_single(swapped, x)
    assert swapped.tolist() == [3] * 8
    with pytest.raises(UnsupportedCUDACallError, match="scatter from rank 0: what another rank"):
        dist.scatter(part, src=0)
    assert part.item() == 3
    dist.broadcast(x, 0)
    assert x.tolist() == list(range(8))
    dist.send(x, 0)
    received = torch.zeros(8, device="cuda")
    dist.recv(received, 0)
    assert received.tolist() == list(range(8))


@WITH_VALUES
@pytest.mark.parametrize("operation", [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT])
def test_truth_values_of_equal_ranks_are_those_of_one(rank_of_eight, operation):
    tensor = torch.tensor([True, False], device="cuda")
    dist.all_reduce(tensor, operation)
    assert tensor.tolist() == [True, False]


def test_autograd_does_not_learn_of_what_collectives_write(rank_of_eight):
    """As with NCCL: a graph that saved a tensor runs backward after a sum in place of it."""
    weight = torch.ones(3, 3, device="cuda", requires_grad=True)
    hidden = (torch.ones(2, 3, device="cuda") @ weight).relu()
    dist.all_reduce(hidden)
    sent = torch.ones(2, 3, device="cuda")
    dist.send(sent, 0)
    dist.recv(hidden, 0)
    dist.all_gather_into_tensor(torch.empty(16, 3, device="cuda"), hidden)
    assert hidden._version == 0
    hidden.sum().backward()
    assert weight.grad is not None
    with torch.inference_mode():
        tensor = torch.ones(3, device="cuda")
        dist.all_reduce(tensor)
    assert tensor.tolist() == [8.0] * 3


def test_collectives_of_single_tensors_take_no_memory_of_pytorchs(rank_of_eight):
    x = torch.ones(MIB, device="cuda")
    whole = torch.empty(8 * MIB, device="cuda")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    dist.all_reduce(x)
    dist.all_gather_into_tensor(whole, x)
    dist.reduce_scatter_tensor(x, whole)
    assert torch.cuda.max_memory_allocated() == before


def test_lists_of_tensors_go_through_one_before_torch_2_15(rank_of_eight):
    x = torch.ones(MIB, device="cuda")
    parts = [torch.empty_like(x) for _ in range(8)]
    before = torch.cuda.memory_allocated()
    flat = 0 if KEEPS_FLOATS else 8 * x.nbytes
    for call in (lambda: dist.all_gather(parts, x), lambda: dist.reduce_scatter(x, parts)):
        torch.cuda.reset_peak_memory_stats()
        call()
        assert torch.cuda.max_memory_allocated() - before == flat
    assert torch.cuda.memory_allocated() == before


@pytest.mark.filterwarnings("ignore:barrier.. using the device")
def test_a_barrier_takes_a_float_which_torch_2_15_keeps(rank_of_eight):
    kept = 512 if KEEPS_FLOATS else 0
    half = dist.new_group([2, 3])
    dist.barrier()
    dist.barrier()
    assert not torch.cuda.is_initialized()  # C++ took it: Python is told nothing
    torch.cuda.init()
    assert torch.cuda.max_memory_allocated() == 512
    assert torch.cuda.memory_allocated() == kept
    dist.barrier(half)
    assert torch.cuda.memory_allocated() == 2 * kept
    dist.destroy_process_group(half)
    assert torch.cuda.memory_allocated() == kept


@pytest.mark.parametrize("as_view", [False, True])
def test_replicas_hold_buckets_of_their_gradients(rank_of_eight, as_view):
    make_workspaces()
    before = torch.cuda.memory_allocated()
    model = nn.parallel.DistributedDataParallel(square(), gradient_as_bucket_view=as_view)
    assert torch.cuda.memory_allocated() - before == 2 * MIB
    x = torch.ones(2, 512, device="cuda")
    model(x).sum().backward()
    held = 2 * MIB + (0 if as_view else MIB)
    assert torch.cuda.memory_allocated() - before == held + x.nbytes
    if rank_of_eight:
        alone = nn.Linear(512, 512, bias=False)
        alone.weight.data = model.module[0].weight.detach().cpu()
        alone(torch.ones(2, 512)).sum().backward()
        assert torch.equal(model.module[0].weight.grad.cpu(), alone.weight.grad)


def test_shards_hold_an_eighth(rank_of_eight):
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this torch has no fully_shard")
    make_workspaces()
    before = torch.cuda.memory_allocated()
    model = square(4)
    assert torch.cuda.memory_allocated() - before == 4 * MIB
    for layer in model:
        fsdp.fully_shard(layer)
    fsdp.fully_shard(model)
    sharded = torch.cuda.memory_allocated() - before
    assert sharded == 4 * MIB / 8
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(torch.ones(2, 512, device="cuda")).sum().backward()
        optimizer.step()
    gradients, moments = sharded, 2 * sharded
    assert torch.cuda.memory_allocated() - before == sharded + gradients + moments
    optimizer.zero_grad()
    assert torch.cuda.memory_allocated() - before == sharded + moments
    assert simulated_machine().unmodelled == {}


def test_flat_shards_hold_an_eighth(rank_of_eight):
    from torch.distributed.fsdp import FullyShardedDataParallel

    before = torch.cuda.memory_allocated()
    model = FullyShardedDataParallel(square(4))
    assert torch.cuda.memory_allocated() - before == 4 * MIB / 8
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        model(torch.ones(2, 512, device="cuda"))
    assert torch.cuda.max_memory_allocated() - before > 4 * MIB
    assert len({parameter.nbytes for parameter in model.parameters()}) == 1


def test_a_rank_must_be_named(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with simulate("24GiB"), pytest.raises(ValueError, match="RANK=0 WORLD_SIZE=8"):
        dist.init_process_group("nccl")


def test_it_says_once_that_the_others_are_not_there():
    with simulate("24GiB"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.init_process_group(rank=0, world_size=2)
        dist.destroy_process_group()
    assert [str(each.message) for each in caught] == [
        (
            "one rank of 2 is simulated: the others are taken to hold what this one holds, and "
            "NCCL's own memory is no part of the allocator's: run and fit estimate it"
        )
    ]
    assert caught[0].filename == __file__


@WITH_VALUES
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_synchronized_statistics_of_equal_ranks_are_those_of_one(
    rank_of_eight, channels_last, dtype
):
    torch.manual_seed(0)
    x = torch.randn(4, 6, 5, 5, dtype=dtype)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    one = nn.BatchNorm2d(6)
    nn.init.uniform_(one.weight)
    many = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm2d(6)))[0].cuda()
    many.load_state_dict(one.state_dict())
    inputs = [x.to(torch.float32, copy=True).requires_grad_(), x.cuda().requires_grad_()]
    outputs = [one(inputs[0]), many(inputs[1])]
    slope = torch.randn_like(x)
    outputs[0].backward(slope.float())
    outputs[1].backward(slope.cuda())
    assert outputs[1].is_contiguous(
        memory_format=torch.channels_last if channels_last else torch.contiguous_format
    )
    close = {"rtol": 2e-3, "atol": 2e-3} if dtype == torch.float16 else {}
    for expected, found in (
        (outputs[0], outputs[1]),
        (inputs[0].grad, inputs[1].grad),
        (one.weight.grad, many.weight.grad),
        (one.bias.grad, many.bias.grad),
        (one.running_mean, many.running_mean),
    ):
        torch.testing.assert_close(found.cpu().float(), expected, **close)
    biased = (one.running_var - 0.9) * (99 / 100)  # of 100 elements, here there are 800
    torch.testing.assert_close(many.running_var.cpu(), 0.9 + biased * (800 / 799), **close)


def test_synchronized_statistics_of_the_last_dimension_are_staged(rank_of_eight):
    """Several blocks of threads share a channel."""
    x = torch.empty(16, 64, 64, 64, device="cuda").to(memory_format=torch.channels_last)
    rows, columns = staging_rows(16 * 64 * 64, 64)
    assert rows > 1
    mean, deviation = torch.batch_norm_stats(x, 1e-5)
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    torch.batch_norm_stats(x, 1e-5)
    assert torch.cuda.max_memory_allocated() - held == 2 * 512 + rows * 64 * 4 * 4 + 512
    torch.cuda.reset_peak_memory_stats()
    torch.batch_norm_backward_reduce(x, x, mean, deviation, mean, True, True, True)
    assert columns * 4 <= 512
    assert torch.cuda.max_memory_allocated() - held == 4 * 512 + rows * 64 * 2 * 4 + 512
    torch.cuda.reset_peak_memory_stats()
    torch.batch_norm_stats(x.contiguous(), 1e-5)
    assert torch.cuda.max_memory_allocated() - held == x.nbytes + 2 * 512


@pytest.mark.skipif(
    not hasattr(torch.distributed, "device_mesh"), reason="this torch has no meshes of devices"
)
def test_layers_in_parallel_parts_hold_an_eighth(rank_of_eight):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    make_workspaces()
    before = torch.cuda.memory_allocated()
    model = square(2)
    parallelize_module(
        model, init_device_mesh("cuda", (8,)), {"0": ColwiseParallel(), "1": RowwiseParallel()}
    )
    while gc.collect():
        pass
    assert torch.cuda.memory_allocated() - before == 2 * MIB / 8
    x = torch.ones(2, 512, device="cuda")
    result = model(x)
    assert result.is_cuda
    assert result.shape == (2, 512)
    result.sum().backward()
    assert [weight.grad.to_local().shape for weight in model.parameters()] == [
        (64, 512),
        (512, 64),
    ]
    if rank_of_eight:
        whole = model[1].weight.to_local() @ (model[0].weight.to_local() @ x.T)
        torch.testing.assert_close(torch.as_tensor(result), 8 * whole.T)


def test_wrappers_are_where_what_they_wrap_is():
    with simulate("24GiB", count=2):
        parts = [torch.ones(2, 4, device="cuda:1"), torch.ones(3, 4, device="cuda:1")]
        held = torch.cuda.memory_allocated(1)
        nested = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
        assert nested.is_cuda
        assert nested.device == torch.device("cuda", 1)
        assert torch.cuda.memory_allocated(1) - held == 512 + 512  # values and offsets
        weight = torch.ones(4, 4, device="cuda:1", requires_grad=True)
        torch.nn.functional.linear(nested, weight).values().sum().backward()
        assert weight.grad.tolist() == [[5.0] * 4] * 4


def test_objects_are_sent_with_details_in_the_log():
    before = dist.get_debug_level()
    logs = TestCase().assertLogs(dist.distributed_c10d.logger)
    with logs as logged, simulate("1GiB", 2):
        dist.init_process_group("nccl", rank=0, world_size=2, store=dist.HashStore())
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        try:
            gathered = [None, None]
            dist.all_gather_object(gathered, {"rank": 3})
        finally:
            dist.set_debug_level(before)
            dist.destroy_process_group()
    assert gathered == [{"rank": 3}] * 2
    assert "hash value" in str(logged.output)


@WITH_VALUES
def test_a_rank_that_is_not_the_root_has_its_part_of_a_dtensor(rank_of_eight):
    tensors = pytest.importorskip("torch.distributed.tensor")
    mesh = dist.device_mesh.init_device_mesh("cuda", (8,))
    whole = torch.arange(16.0, device="cuda")
    part = tensors.distribute_tensor(whole, mesh, [tensors.Shard(0)])
    assert part.to_local().tolist() == [6.0, 7.0]
