"""Courtesy without enough memory, with an error half way, and after Ctrl-C: nothing is lost."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
from pathlib import Path

import pytest
import torch
from support.gpu_tensors import allocated, on_gpu

import pytorch_memlab
from pytorch_memlab.courtesy import Courtesy, chunked_copies, host_blocks, lending
from pytorch_memlab.errors import MemlabError
from pytorch_memlab.tensors import moves

pytestmark = pytest.mark.usefixtures("gpu")


def test_too_little_host_memory_moves_nothing(monkeypatch):
    tensors = [on_gpu(256), on_gpu(256)]
    monkeypatch.setattr(host_blocks, "free_host_memory", lambda: 1000)
    lender = Courtesy()
    with pytest.raises(
        MemlabError,
        match=r"^no room for 2\.0 KiB in host memory: with the rounding of pinned memory 2\.0 KiB "
        r"are needed, 1000 B are free; nothing was moved$",
    ):
        lender.yield_memory()

    assert {str(tensor.device) for tensor in tensors} == {"cuda:0"}
    assert allocated() == 2048
    with pytest.raises(MemlabError, match="nothing to restore"):
        lender.restore()


def test_a_host_that_breaks_its_word_moves_nothing(monkeypatch):
    tensor = on_gpu(256)

    def refuse(*_args, **_options):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(host_blocks, "_pinned", refuse)
    monkeypatch.setattr(host_blocks, "_unpinned", refuse)
    with pytest.raises(
        MemlabError, match=r"^no room for 1\.0 KiB in host memory; nothing was moved$"
    ):
        Courtesy().yield_memory()
    monkeypatch.undo()

    assert str(tensor.device) == "cuda:0"
    assert torch.equal(tensor.cpu(), torch.arange(256.0))


def test_without_pinned_memory_it_lends_all_the_same(monkeypatch):
    tensor = on_gpu(256)

    def refuse(size):
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(host_blocks, "_pinned", refuse)
    lender = Courtesy()
    with pytest.warns(UserWarning, match="gives no pinned memory"):
        lender.yield_memory()
    assert not tensor.untyped_storage().is_pinned()
    lender.restore()

    assert torch.equal(tensor.cpu(), torch.arange(256.0))


@pytest.mark.parametrize("part", ["move_to_host", "point"])
def test_an_error_half_way_moves_everything_back(monkeypatch, part):
    tensors = [on_gpu(256), on_gpu(300)]
    view = tensors[1][5:]
    owner = {"move_to_host": lending, "point": moves}[part]
    original = getattr(owner, part)
    calls = []

    def broken(*args):
        calls.append(args)
        if len(calls) == 2:
            raise RuntimeError("a subclass that refuses")
        original(*args)

    monkeypatch.setattr(owner, part, broken)
    with pytest.raises(RuntimeError, match="a subclass that refuses"):
        Courtesy().yield_memory()
    calls.clear()

    assert allocated() == 1024 + 1536
    assert torch.equal(tensors[0].cpu(), torch.arange(256.0))
    assert torch.equal(view.cpu(), torch.arange(5.0, 300.0))
    assert view.untyped_storage()._cdata == tensors[1].untyped_storage()._cdata


OUR_FILES = tuple(
    str(Path(pytorch_memlab.__file__).parent / room) for room in ("courtesy", "tensors")
)


class ControlC:
    """Ctrl-C when a certain line of the courtesy's own code is reached."""

    def __init__(self, after: int):
        self.left = after

    def __call__(self, frame, event, arg):
        if not frame.f_code.co_filename.startswith(OUR_FILES):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)
        return self


def lend_interrupted(after: int) -> int:
    """The number of lines left when all was lent and back; at least 0 without an interrupt."""
    tensors = [on_gpu(300), on_gpu(70, 2).t(), on_gpu(5)]
    out = (tensors[2].requires_grad_() * on_gpu(5)).sum()
    expected = [tensor.tolist() for tensor in tensors]
    lender = Courtesy()
    control = ControlC(after)
    before = sys.gettrace()
    try:
        sys.settrace(control)
        lender.yield_memory()
        lender.restore()
    except KeyboardInterrupt:
        sys.settrace(before)
        with contextlib.suppress(MemlabError):  # nothing to restore
            lender.restore()
    finally:
        sys.settrace(before)
    assert [str(tensor.device) for tensor in tensors] == ["cuda:0"] * 3
    assert [tensor.tolist() for tensor in tensors] == expected
    out.backward()
    assert tensors[2].grad.tolist() == list(range(5))
    gc.collect()  # frames of the interrupt
    assert allocated() == 1536 + 1024 + 3 * 512  # the last ones: an operand, its gradient, out
    return control.left


def test_ctrl_c_at_any_moment_loses_nothing(monkeypatch):
    monkeypatch.setattr(chunked_copies, "CHUNK", 1000)
    lines = 10**6 - lend_interrupted(10**6)
    reached = [lend_interrupted(after) for after in range(1, lines, lines // 60)]

    assert len(reached) >= 60
    assert max(reached) <= 0


@pytest.mark.parametrize("gpu", ["64MiB"], indirect=True)
def test_a_gpu_that_has_no_room_any_more_can_be_restored_later(gpu):
    small, large = on_gpu(3), torch.full((2**23,), 3.0, device="cuda")
    smaller = on_gpu(2)  # has room, and waits for its turn
    lender = Courtesy()
    lender.yield_memory()
    intruder = torch.empty(40 * 2**20, dtype=torch.uint8, device="cuda")
    with pytest.raises(
        MemlabError,
        match=r"^no room on cuda:0: 32\.0 MiB are still in host memory, safe; call restore\(\)",
    ):
        lender.restore()

    assert str(small.device) == "cuda:0"
    assert {large.device.type, smaller.device.type} == {"cpu"}
    assert large[-1].item() == 3.0
    del intruder
    torch.cuda.empty_cache()
    lender.restore()
    assert str(large.device) == "cuda:0"
    assert large[-1].item() == 3.0
    assert str(smaller.device) == "cuda:0"
    assert smaller.tolist() == [0, 1]


def test_memory_of_a_restore_that_was_interrupted_is_lent_again(monkeypatch):
    tensor = on_gpu(300)
    out = tensor.requires_grad_().square().sum()  # a graph, which keeps the storage
    lender = Courtesy()
    lender.yield_memory()

    def interrupted(*_args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(chunked_copies.Copies, "copy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lender.restore()
    assert allocated() > 0
    lender.yield_memory()
    assert allocated() == 0
    lender.restore()
    out.backward()
    assert tensor.grad.tolist() == [2 * number for number in range(300)]
