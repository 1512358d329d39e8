"""Tensors of a simulated GPU that processes share, as ``torch.multiprocessing`` shares CUDA's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from torch import multiprocessing, nn
from torch.multiprocessing.reductions import reduce_tensor

from pytorch_memlab import simulate

MIB = 2**20


def train(model: nn.Module, results: Any) -> None:
    """One process of Hogwild, which then makes a tensor for the others."""
    held = torch.cuda.memory_allocated()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(torch.ones(1, 512, device="cuda")).sum().backward()
    optimizer.step()
    device = str(next(model.parameters()).device)
    results.put((held, device, torch.full((3,), 7.0, device="cuda")))
    results.get_acknowledgement()


class Results:
    """A queue, and a word that what was in it has arrived."""

    def __init__(self, context: Any) -> None:
        self._queue, self._arrived = context.Queue(), context.Event()

    def put(self, item: Any) -> None:
        self._queue.put(item)

    def get(self) -> Any:
        item = self._queue.get(timeout=60)
        self._arrived.set()
        return item

    def get_acknowledgement(self) -> None:
        assert self._arrived.wait(60)


def test_tensors_of_a_gpu_are_shared_as_they_are_and_those_of_the_host_move():
    with simulate("24GiB"):
        tensor, host = torch.ones(4, device="cuda"), torch.ones(4)
        address = tensor.data_ptr()
        assert [tensor.is_shared(), host.is_shared()] == [True, False]
        assert tensor.share_memory_() is tensor
        assert host.share_memory_() is host
        assert [tensor.is_shared(), host.is_shared()] == [True, True]
        assert tensor.data_ptr() == address
        assert tensor.tolist() == host.tolist() == [1.0] * 4


@pytest.mark.parametrize("strategy", sorted(multiprocessing.get_all_sharing_strategies()))
def test_a_process_trains_what_another_one_made(strategy, monkeypatch):
    monkeypatch.setattr(multiprocessing, "_sharing_strategy", strategy)
    context = multiprocessing.get_context("spawn")
    with simulate("24GiB"):
        model = nn.Linear(512, 512, bias=False).cuda().share_memory()
        nn.init.ones_(model.weight)
        before = torch.cuda.memory_allocated()
        assert before == MIB
        results = Results(context)
        process = context.Process(target=train, args=(model, results))
        process.start()
        held, device, sent = results.get()
        process.join()
        assert held == 0  # an allocator counts what it made itself
        assert device == "cuda:0"
        assert torch.equal(model.weight, torch.zeros(512, 512, device="cuda"))
        assert sent.device == torch.device("cuda", 0)
        assert sent.tolist() == [7, 7, 7]
        assert torch.cuda.memory_allocated() == before


@computed_or_dry
def test_what_goes_around_is_what_it_was(compute):
    with simulate("24GiB", count=2, compute=compute):
        whole = torch.arange(12.0, device="cuda:1").view(3, 4)
        held = torch.cuda.memory_allocated(1)
        part = whole[1:, ::2]
        rebuild, args = reduce_tensor(part)
        again = rebuild(*args)
        assert again.device == whole.device
        assert (again.shape, again.stride()) == (part.shape, part.stride())
        assert torch.equal(again, part)
        part.zero_()
        assert again.tolist() == [[0, 0], [0, 0]]
        assert torch.cuda.memory_allocated(1) == held
        rebuild, args = reduce_tensor(torch.empty(0, 3, device="cuda"))
        assert rebuild(*args).shape == (0, 3)


def test_a_dry_run_sends_no_bytes():
    with simulate("8TiB", compute=False):
        weight = torch.empty(2**40, device="cuda")
        rebuild, args = reduce_tensor(weight)
        assert args[7].descriptor is None
        assert args[7].name is None
        again = rebuild(*args)
        assert (again.shape, again.is_cuda) == (weight.shape, True)
        assert torch.cuda.memory_allocated() == weight.nbytes
