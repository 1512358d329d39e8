"""Ranks that run beside each other get what the others send; what no rank sends is refused."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from support.python_process import run_python
from support.side_by_side_ranks import run_ranks
from torch import nn

from pytorch_memlab import simulate
from pytorch_memlab.errors import UnsupportedCUDACallError

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed"),
    pytest.mark.filterwarnings("ignore:one rank of"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

BOTH = pytest.mark.parametrize("compute", [True, False], ids=["computed", "shapes"])


def ints(*values):
    return torch.tensor(values, device="cuda")


@BOTH
def test_a_ring_passes_on_what_each_rank_has(compute):
    def ring(rank):
        received = ints(0, 0)
        ops = [
            dist.P2POp(dist.irecv, received, (rank - 1) % 3),
            dist.P2POp(dist.isend, ints(rank, 10 * rank), (rank + 1) % 3),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return received.tolist()

    assert run_ranks(ring, 3, compute=compute) == [[2, 20], [0, 0], [1, 10]]


@BOTH
def test_messages_come_in_their_order_and_by_their_tag(compute):
    def talk(rank):
        if rank == 0:
            for value in (1, 2, 3):
                dist.send(ints(value), 1)
            dist.send(ints(9), 1, tag=7)
            return None
        tagged, values = ints(0), [ints(0) for _ in range(3)]
        dist.recv(tagged, 0, tag=7)
        late = dist.irecv(values[0], 0)
        dist.recv(values[1], 0)
        late.wait()
        dist.recv(values[2], 0)
        return [tagged.item(), *(one.item() for one in values)]

    assert run_ranks(talk, 2, compute=compute)[1] == [9, 1, 2, 3]


@BOTH
def test_each_rank_gets_its_tensor_of_the_root(compute):
    def scatter(rank):
        parts = [ints(5, 6), ints(7, 8), ints(9, 10)] if rank == 1 else None
        own = ints(0, 0)
        dist.scatter(own, parts, src=1)
        return own.tolist()

    assert run_ranks(scatter, 3, compute=compute) == [[5, 6], [7, 8], [9, 10]]


def test_large_tensors_travel_with_their_values():
    count = 3 * 2**20  # 12 MiB, more than the store takes at once

    def talk(rank):
        if rank == 0:
            dist.send(torch.arange(count, device="cuda", dtype=torch.float32), 1)
            return None
        tensor = torch.empty(count, device="cuda")
        dist.recv(tensor, 0)
        return bool((tensor == torch.arange(count, device="cuda")).all())

    assert run_ranks(talk, 2, compute=True)[1] is True


def test_a_dry_run_waits_for_no_large_tensor_and_marks_the_line_that_reads_it():
    def receive(rank):
        if rank == 0:
            return None  # sends nothing
        tensor = torch.ones(2**20, device="cuda")
        dist.recv(tensor, 0)
        tensor[0].item()
        from pytorch_memlab.devices import simulated_machine

        (read,) = simulated_machine().values.reads.all()
        return read.name

    assert run_ranks(receive, 2)[1] == "Tensor.item"


@BOTH
def test_objects_come_from_the_rank_that_has_them(compute):
    def exchange(rank):
        received = [None, None]
        if rank == 0:
            dist.send_object_list([{"shape": (2, 3)}, "x" * 100_000], dst=1)
        elif rank == 1:
            dist.recv_object_list(received, src=0)
        everyone = [None] * 3
        dist.all_gather_object(everyone, ("rank", rank))
        settings = [{"lr": 0.1}, 7] if rank == 2 else [None, None]
        dist.broadcast_object_list(settings, src=2)
        part = [None]
        dist.scatter_object_list(part, ["a", "b" * 70_000, "c"] if rank == 1 else None, src=1)
        gathered = [None] * 3 if rank == 2 else None
        dist.gather_object(rank * 11, gathered, dst=2)
        return received, everyone, settings, part[0], gathered

    found = run_ranks(exchange, 3, compute=compute)
    everyone = [("rank", 0), ("rank", 1), ("rank", 2)]
    settings = [{"lr": 0.1}, 7]
    assert found == [
        ([None, None], everyone, settings, "a", None),
        ([{"shape": (2, 3)}, "x" * 100_000], everyone, settings, "b" * 70_000, None),
        ([None, None], everyone, settings, "c", [0, 11, 22]),
    ]


@BOTH
def test_objects_take_the_memory_that_they_take_with_nccl(compute):
    """Sizes of 8 bytes each, and the bytes of all pickles in one tensor."""

    def exchange(rank):
        torch.cuda.reset_peak_memory_stats()
        if rank == 0:
            dist.send_object_list([b"x" * 3_000_000], dst=1)
        else:
            dist.recv_object_list([None], src=0)
        return torch.cuda.max_memory_allocated()

    peaks = run_ranks(exchange, 2, compute=compute)
    pickled = -(-(3_000_000 + 16) // 512) * 512
    assert peaks[1] in (pickled + 512, pickled + 1024)
    assert peaks[0] >= pickled


def test_a_rank_that_ends_is_not_waited_for():
    def wait(rank):
        if rank == 0:
            return "ended"
        dist.recv(ints(0), 0)
        return "received"

    begun = time.monotonic()
    ended, error = run_ranks(wait, 2)
    assert ended == "ended"
    assert error == (
        "RankHasEndedError: recv from rank 0: rank 0, from which rank 1 receives, has ended"
    )
    assert time.monotonic() - begun < 300


def test_ranks_that_wait_for_each_other_are_named():
    """All of them wait for the rank before them, and none has sent: NCCL hangs there."""

    def ring(rank):
        dist.recv(ints(0), (rank - 1) % 3)

    errors = run_ranks(ring, 3)
    circles = [error for error in errors if error.endswith(" wait for each other")]
    assert circles
    for error in errors:
        assert error in circles or "has ended" in error
    assert circles[0].partition("ranks ")[2] in (
        "2, 1 and 0 wait for each other",
        "0, 2 and 1 wait for each other",
        "1, 0 and 2 wait for each other",
    )


def test_a_rank_whose_steps_repeat_sends_what_it_sent_last():
    """``fit`` ends ranks where their peaks repeat, some of them a step earlier than others."""

    def steps(rank):
        values = []
        for step in range(2 if rank == 0 else 4):
            if rank == 0:
                dist.send(ints(step), 1)
            else:
                tensor = ints(0)
                dist.recv(tensor, 0)
                values.append(tensor.item())
        return values

    assert run_ranks(steps, 2)[1] == [0, 1, 1, 1]


def test_another_number_of_elements_is_an_error():
    def talk(rank):
        if rank == 0:
            dist.send(ints(1, 2, 3), 1)
        else:
            dist.recv(ints(0), 0)

    assert run_ranks(talk, 2, compute=True)[1] == (
        "ValueError: recv from rank 0: it sends 3 elements, and 1 are expected"
    )


def test_a_rank_that_does_not_run_is_named():
    """Rank 2 of 3 runs alone."""

    def calls(rank):
        def error_of(call):
            with pytest.raises(UnsupportedCUDACallError) as error:
                call()
            return str(error.value).partition(",")[0]

        errors = [
            error_of(lambda: dist.recv_object_list([None], src=0)),
            error_of(lambda: dist.broadcast_object_list([None], src=1)),
            error_of(lambda: dist.scatter_object_list([None], None, src=1)),
            error_of(lambda: dist.recv(ints(0), 1)),
        ]
        own = [{"lr": 3}]
        dist.broadcast_object_list(own, src=1)
        return errors, own

    ((errors, own),) = run_ranks(calls, 3, compute=True, beside=[2])
    assert errors == [
        "recv_object_list: the objects of rank 0 are not known",
        "broadcast_object_list: the objects of rank 1 are not known",
        "scatter_object_list: the objects of rank 1 are not known",
        "recv from rank 1: what another rank sends is not known",
    ]
    assert own == [{"lr": 3}]


@BOTH
def test_one_rank_alone_receives_in_a_ring_what_it_sends(compute, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with simulate("24GiB", compute=compute):
        dist.init_process_group("nccl")
        received = ints(0, 0)
        ops = [dist.P2POp(dist.irecv, received, 0), dist.P2POp(dist.isend, ints(3, 4), 2)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert received.tolist() == [3, 4]


def test_a_pipeline_computes_what_the_whole_model_computes():
    pipelining = pytest.importorskip("torch.distributed.pipelining")

    def layers():
        torch.manual_seed(0)
        return [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)]

    def data():
        torch.manual_seed(1)
        return torch.randn(6, 8), torch.randn(6, 8)

    def loss(output, target):
        return (output - target).square().sum()

    def train(rank):
        device = torch.device("cuda", 0)
        layer = layers()[rank].to(device)
        stage = pipelining.PipelineStage(layer, rank, 3, device)
        schedule = pipelining.Schedule1F1B(stage, 3, loss_fn=loss, scale_grads=False)
        x, target = (one.to(device) for one in data())
        losses = []
        if rank == 2:
            schedule.step(target=target, losses=losses)
        else:
            schedule.step(*[x][: rank == 0])
        return [one.item() for one in losses], layer[0].weight.grad.cpu().tolist()

    model = nn.Sequential(*layers())
    x, target = data()
    expected = [loss(model(a), b) for a, b in zip(x.chunk(3), target.chunk(3), strict=True)]
    sum(expected).backward()
    found = run_ranks(train, 3, compute=True)
    torch.testing.assert_close(torch.tensor(found[2][0]), torch.stack(expected).detach())
    for (_, grad), layer in zip(found, model, strict=True):
        torch.testing.assert_close(torch.tensor(grad), layer[0].weight.grad)


SPAWNED = """\
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def worker(rank, world_size, messages):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", "tcp://127.0.0.1:29511", rank=rank, world_size=world_size)
    own = torch.tensor([rank + 5], device="cuda")
    everyone = [None] * world_size
    if world_size == 2:
        dist.all_gather_object(everyone, rank)
        dist.send(own, 1) if rank == 0 else dist.recv(own, 0)
    messages.put((rank, own.item(), everyone))


if __name__ == "__main__":
    import os

    from pytorch_memlab import simulate

    with simulate("24GiB", count=2):
        messages = mp.get_context("spawn").SimpleQueue()
        for world_size in (2, 4):
            mp.spawn(worker, (world_size, messages), nprocs=2)
            print(sorted(messages.get() for _ in range(2)))
        assert "PYTORCH_MEMLAB_PEERS" not in os.environ
"""


def test_processes_that_spawn_starts_are_ranks_beside_each_other(tmp_path):
    """Two of four ranks are those of one machine, beside which the others do not run."""
    script = tmp_path / "spawned.py"
    script.write_text(SPAWNED)
    done = run_python([str(script)])
    assert done.stdout.splitlines() == [
        "[(0, 5, [0, 1]), (1, 5, [0, 1])]",
        "[(0, 5, [None, None, None, None]), (1, 6, [None, None, None, None])]",
    ], done.stderr
