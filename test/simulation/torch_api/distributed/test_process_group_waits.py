"""Process groups under simulation, however they are made: nothing in them waits for other ranks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import init_process_group as imported_before

from pytorch_memlab import simulate
from pytorch_memlab.errors import UnsupportedCUDACallError

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed"),
    pytest.mark.filterwarnings("ignore:one rank of"),
    pytest.mark.filterwarnings("ignore:barrier.. using the device"),
]

device_mesh = pytest.importorskip("torch.distributed.device_mesh")


@pytest.fixture
def ranks(monkeypatch) -> None:
    """The environment of rank 1 of 4, without an address: no other rank is there."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("MASTER_PORT", raising=False)


@pytest.fixture
def group(ranks) -> Iterator[None]:
    """A group with NCCL, of which this is rank 1 of 4."""
    with simulate("24GiB", count=4):
        torch.cuda.set_device(1)
        dist.init_process_group("nccl")
        yield


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("backend", ["nccl", None, "cpu:gloo,cuda:nccl"])
def test_a_group_is_bound_to_a_device(backend, size):
    with simulate("24GiB", count=2):
        device = torch.device("cuda", size - 1)
        dist.init_process_group(backend, rank=size - 1, world_size=size, device_id=device)
        assert dist.get_world_size() == size
        dist.barrier()
        model = nn.Linear(8, 8).to(device)
        replica = nn.parallel.DistributedDataParallel(model, device_ids=[device.index])
        replica(torch.ones(2, 8, device=device)).sum().backward()
        assert model.weight.grad.device == device
        part = dist.new_group([size - 1])
        assert (dist.get_rank(part), dist.get_world_size(part)) == (0, 1)
        mesh = device_mesh.init_device_mesh("cuda", (1, size))
        assert mesh.get_group(1).size() == size


@pytest.mark.parametrize("backend", ["nccl2", "nccl-lazy", "nccl-legacy"])
def test_each_kind_of_nccl_is_simulated(backend, ranks):
    if not hasattr(dist.distributed_c10d, "_create_nccl2_process_group"):
        pytest.skip("torch has one kind of NCCL before 2.14")
    with simulate("24GiB", count=4):
        dist.init_process_group(backend)
        assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (1, 4, backend)
        x = torch.ones(2, device="cuda:1")
        dist.all_reduce(x)
        assert x.tolist() == [4, 4]


@pytest.mark.skipif(not hasattr(dist, "split_group"), reason="this torch splits no groups")
def test_a_bound_group_is_split(ranks):
    with simulate("24GiB", count=4):
        dist.init_process_group("nccl", device_id=torch.device("cuda", 1))
        half = dist.split_group(split_ranks=[[0, 1], [2, 3]])
        assert (dist.get_rank(half), dist.get_world_size(half)) == (1, 2)
        x = torch.ones(2, device="cuda:1")
        dist.all_reduce(x, group=half)
        assert x.tolist() == [2, 2]
        other = dist.split_group(split_ranks=[[2, 3]])
        assert other in (None, dist.GroupMember.NON_GROUP_MEMBER)  # the second from 2.14 on


def test_options_are_taken(ranks):
    with simulate("24GiB", count=4):
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        options.config.min_ctas = 4
        assert not dist.ProcessGroupNCCL.Options().is_high_priority_stream
        dist.init_process_group("nccl", pg_options=options)
        assert dist.get_world_size() == 4


def test_a_mesh_makes_the_group(ranks):
    with simulate("24GiB", count=4):
        mesh = device_mesh.init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
        assert (mesh.get_local_rank("dp"), mesh.get_local_rank("tp")) == (0, 1)
        assert torch.cuda.current_device() == 1
        x = torch.ones(2, device="cuda")
        dist.all_reduce(x, group=mesh.get_group("tp"))
        assert x.tolist() == [2, 2]


@pytest.mark.parametrize("backend", ["nccl", "gloo", None])
@pytest.mark.parametrize("method", [None, "env://", "tcp://10.255.255.1:29500", "file:///nowhere"])
def test_no_rendezvous_is_kept(ranks, backend, method):
    with simulate("24GiB", count=4):
        imported_before(backend, init_method=method)
        assert (dist.get_rank(), dist.get_world_size()) == (1, 4)


def test_a_store_of_the_program_waits_for_no_worker(ranks):
    with simulate("24GiB"):
        store = dist.TCPStore("10.255.255.1", 29500, 4, is_master=False)
        dist.init_process_group("gloo", store=store, rank=1, world_size=4)
        store.set("mine", "1")
        assert store.get("mine") == b"1"
        with pytest.raises(UnsupportedCUDACallError, match="waits for theirs of a store"):
            store.get("theirs")
        with pytest.raises(UnsupportedCUDACallError, match="waits for theirs of a store"):
            store.wait(["mine", "theirs"], timedelta(hours=1))
        assert store.multi_get(["mine"]) == [b"1"]
        with pytest.raises(UnsupportedCUDACallError, match="waits for theirs of a store"):
            store.multi_get(["mine", "theirs"])
        kind = dist.TCPStore
        with pytest.raises(RuntimeError, match=r"(?i)timeout"):
            dist.PrefixStore("part", store).get("theirs")
    left_over = kind("localhost", 0, is_master=True, wait_for_workers=False)
    assert type(left_over) is dist.TCPStore


def test_nothing_waits_in_the_stores_of_groups_and_in_files(group, tmp_path):
    default = dist.distributed_c10d._get_default_store()
    default.set("mine", "1")
    assert default.get("mine") == b"1"
    with pytest.raises(RuntimeError, match=r"(?i)timeout"):
        default.get("theirs")
    with pytest.raises(UnsupportedCUDACallError, match="waits for theirs of a store"):
        dist.FileStore(str(tmp_path / "store"), 4).get("theirs")
    assert list(tmp_path.iterdir()) == []


def test_barriers_are_passed(group, monkeypatch):
    monkeypatch.setenv("TORCH_DIST_INIT_BARRIER", "1")
    dist.barrier()
    dist.barrier(device_ids=[1])
    dist.barrier(async_op=True).wait()
    on_host = dist.new_group(backend="gloo", timeout=timedelta(hours=1))
    dist.barrier(on_host)
    dist.monitored_barrier(on_host, timeout=timedelta(hours=1), wait_all_ranks=True)
    assert dist.get_backend(on_host) == "gloo"
    assert dist.new_group([2, 3]) is dist.GroupMember.NON_GROUP_MEMBER


def test_replicas_may_use_gloo(ranks):
    with simulate("24GiB"):
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4).cuda())
        model(torch.ones(2, 4, device="cuda")).sum().backward()
        assert dist.get_backend() == "gloo"
        assert model.module.bias.grad.tolist() == [2] * 4


def test_messages_arrive_at_once(group):
    x, y = torch.ones(3, device="cuda"), torch.zeros(3, device="cuda")
    requests = dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 2), dist.P2POp(dist.irecv, y, 0)])
    for request in requests:
        request.wait()
    assert (x.tolist(), y.tolist()) == ([1, 1, 1], [1, 1, 1])
    assert dist.recv(x) == 2
    assert x.tolist() == [1, 1, 1]
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as both:
        dist.all_reduce(x)
        dist.all_reduce(y)
    both.wait()


def test_objects_are_this_ranks_own(group):
    settings = [{"lr": 3}, "name"]
    for root in (0, 1):
        dist.broadcast_object_list(settings, src=root)
        assert settings == [{"lr": 3}, "name"]
    everywhere = [None] * 4
    dist.all_gather_object(everywhere, "x")
    assert everywhere == ["x"] * 4
    dist.gather_object("x", None, dst=0)
    part = [None]
    dist.scatter_object_list(part, ["a", "b", "c", "d"], src=1)
    assert part == ["b"]


def test_large_objects_keep_their_contents_without_arithmetic(ranks):
    with simulate("24GiB", compute=False):
        dist.init_process_group("nccl")
        large = {"text": "x" * 100_000}
        everywhere = [None] * 4
        dist.all_gather_object(everywhere, large)
        assert everywhere == [large] * 4
        assert everywhere[1] is not large
        part = [None]
        dist.scatter_object_list(part, [large, {"text": "y" * 90_000}, 3, 4], src=1)
        assert part == [{"text": "y" * 90_000}]


def test_objects_of_another_rank_are_refused(group):
    with pytest.raises(UnsupportedCUDACallError, match="the objects of rank 0 are not known"):
        dist.scatter_object_list([None], None, src=0)
    if hasattr(dist, "recv_object_list"):
        with pytest.raises(UnsupportedCUDACallError, match="the objects of rank 0 are not known"):
            dist.recv_object_list([None, None], src=0)


def test_objects_travel_on_the_gpu(group):
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    dist.all_gather_object([None] * 4, b"x" * 100_000)
    assert torch.cuda.max_memory_allocated() - before > 5 * 100_000


def test_a_timeout_can_be_set(group):
    if hasattr(dist.distributed_c10d, "_set_pg_timeout"):
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=9))


def test_a_group_ends_with_its_simulation(ranks):
    for _ in range(2):
        with simulate("24GiB"):
            dist.init_process_group("nccl")
        assert not dist.is_initialized()


def test_remote_procedures_are_refused(ranks):
    rpc = pytest.importorskip("torch.distributed.rpc")
    if not rpc.is_available():
        pytest.skip("this torch has no torch.distributed.rpc")
    with (
        simulate("24GiB"),
        pytest.raises(UnsupportedCUDACallError, match=r"torch\.distributed\.rpc\.init_rpc is not"),
    ):
        rpc.init_rpc("worker", rank=1, world_size=4)


@pytest.mark.parametrize(
    "name", ["empty", "rendezvous", "get_symm_mem_workspace", "get_mempool_allocator"]
)
def test_symmetric_memory_is_refused_by_name(group, name):
    symmetric_memory = pytest.importorskip("torch.distributed._symmetric_memory")
    if not hasattr(symmetric_memory, name):
        pytest.skip(f"this torch has no {name}")
    with pytest.raises(UnsupportedCUDACallError, match=rf"_symmetric_memory\.{name} is not"):
        getattr(symmetric_memory, name)(16)


def test_remote_calls_are_refused_by_name(group):
    rpc = pytest.importorskip("torch.distributed.rpc")
    if not hasattr(rpc, "init_rpc"):
        pytest.skip("this torch has no rpc")
    with pytest.raises(UnsupportedCUDACallError, match=r"rpc\.init_rpc is not"):
        rpc.init_rpc("worker", rank=0, world_size=2)
