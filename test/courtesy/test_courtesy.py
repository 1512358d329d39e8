"""Courtesy: everything leaves the GPU, and comes back as it was."""

from __future__ import annotations

import contextlib
import copy
import gc
import warnings
import weakref
from itertools import pairwise

import pytest
import torch
from support.courtesy_programs import PROGRAMS, run
from support.gpu_tensors import allocated, make_trainer, on_gpu

from pytorch_memlab.courtesy import Courtesy, chunked_copies, lending
from pytorch_memlab.courtesy.host_blocks import lay_out
from pytorch_memlab.errors import MemlabError, UnknownDeviceError, UsageError
from pytorch_memlab.mem_reporter import MemReporter
from pytorch_memlab.tensors.live_objects import instances_of

pytestmark = pytest.mark.usefixtures("gpu")


def test_tensors_leave_and_come_back_as_the_same_objects():
    tensors = [on_gpu(300, 20), on_gpu(7).to(torch.int16), torch.ones(5, device="cuda:1")]
    expected = [tensor.cpu() for tensor in tensors]
    versions = [tensor._version for tensor in tensors]
    before = allocated(0), allocated(1)
    lender = Courtesy()
    lender.yield_memory()

    assert (allocated(0), allocated(1)) == (0, 0)
    assert torch.cuda.memory_reserved() == 0
    for tensor, values in zip(tensors, expected, strict=True):
        assert tensor.device.type == "cpu"
        assert torch.equal(tensor, values)
    lender.restore()

    assert (allocated(0), allocated(1)) == before
    assert [str(tensor.device) for tensor in tensors] == ["cuda:0", "cuda:0", "cuda:1"]
    assert [tensor._version for tensor in tensors] == versions
    for tensor, values in zip(tensors, expected, strict=True):
        assert torch.equal(tensor.cpu(), values)


def test_what_shared_memory_shares_it_on_both_sides():
    base = on_gpu(6, 4)
    transposed, row, bytes_ = base.t(), base[2], base.view(torch.uint8)
    strides = [view.stride() for view in (transposed, row)]
    with Courtesy():
        assert len({view.data_ptr() for view in (base, transposed, bytes_)}) == 1
        row.fill_(-1)
        assert torch.equal(base[2], torch.full((4,), -1.0))

    assert [view.stride() for view in (transposed, row)] == strides
    assert torch.equal(transposed.cpu()[:, 2], torch.full((4,), -1.0))
    row.fill_(5)
    assert torch.equal(base.cpu()[2], torch.full((4,), 5.0))
    assert allocated() == 512
    assert len({view.untyped_storage()._cdata for view in (base, transposed, row, bytes_)}) == 1


def test_exact_bits_of_values_that_are_no_numbers():
    bits = torch.tensor([0x7FC00001, 0x7F800001, -1, -(2**31)], dtype=torch.int32)
    tensor = bits.cuda().view(torch.float32)
    with Courtesy():
        pass

    assert torch.equal(tensor.view(torch.int32).cpu(), bits)


class Witness:
    """Lends and restores at every stop of a program, and compares all tensors of the GPU."""

    def __init__(self):
        self.stops = 0

    def __call__(self):
        lender = Courtesy()
        before = everything_on_gpu()
        taken = allocated()
        torch.cuda.reset_peak_memory_stats()
        lender.yield_memory()
        assert allocated() == 0
        lender.restore()
        assert everything_on_gpu() == before
        assert torch.cuda.max_memory_allocated() <= taken  # nothing but the tensors
        self.stops += 1


def everything_on_gpu() -> list[tuple]:
    """The tensors there are, how they look at their memory, who shares it, and all bits."""
    tensors = [tensor for tensor in instances_of(torch.Tensor) if tensor.is_cuda]
    first = {tensor.untyped_storage()._cdata: id(tensor) for tensor in sorted(tensors, key=id)}
    with torch.no_grad():
        return sorted(
            (
                id(tensor),
                str(tensor.device),
                tensor.size(),
                tensor.stride(),
                tensor.storage_offset(),
                0 if tensor.is_inference() else tensor._version,
                first[tensor.untyped_storage()._cdata],
                bits_of(tensor.untyped_storage()),
            )
            for tensor in tensors
        )


def bits_of(storage: torch.UntypedStorage) -> bytes:
    return torch.empty(0, dtype=torch.uint8).set_(storage.cpu()).numpy().tobytes()


@pytest.mark.parametrize("program", PROGRAMS)
def test_training_goes_on_as_if_nothing_had_happened(program):
    undisturbed = run(program, lambda: None)
    gc.collect()
    witness = Witness()

    assert run(program, witness) == undisturbed
    assert witness.stops >= 12
    assert undisturbed[0] != undisturbed[1]


def test_a_stop_inside_backward():
    def work(stop):
        weight = on_gpu(4, 4).requires_grad_()
        hidden = weight.sin()
        hidden.register_hook(lambda gradient: stop())
        (hidden * hidden).sum().backward()
        return weight.grad.tolist()

    def stop():
        with Courtesy(), warnings.catch_warnings():
            pass

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the engine's own gradients stay on the GPU
        assert work(stop) == work(lambda: None)


def test_model_gradients_and_optimizer_state_are_cpu_tensors_until_restored():
    model, optimizer = make_trainer(torch.optim.Adam)
    model(torch.ones(1, 8, device="cuda")).sum().backward()
    optimizer.step()
    parameters = list(model.parameters())
    assert model.unused.grad is None
    with Courtesy():
        state = [value for each in optimizer.state.values() for value in each.values()]
        grads = [each.grad for each in parameters if each.grad is not None]
        assert len(state) == 9
        assert {tensor.device.type for tensor in (*parameters, *state, *grads)} == {"cpu"}

    assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True))
    assert model[0].weight is model[2].weight
    assert {str(tensor.device) for tensor in (*parameters, *grads)} == {"cuda:0"}
    assert {str(each["exp_avg"].device) for each in optimizer.state.values()} == {"cuda:0"}


def test_hooks_on_a_gradient_accumulator_are_not_lost():
    # As DistributedDataParallel does: it holds the accumulator, and waits for its hook.
    weight = torch.ones(4, device="cuda", requires_grad=True)
    accumulator = torch.autograd.graph.get_gradient_edge(weight).node
    calls = []
    accumulator.register_hook(lambda *_: calls.append(1))
    with Courtesy():
        assert allocated() == 0
        assert str(weight.device) == "cuda:0"  # another device would mean another accumulator
    weight.sum().backward()

    assert calls == [1]
    assert torch.equal(weight.detach().cpu(), torch.ones(4))


def test_tensors_that_die_or_come_while_lent():
    dying, living = on_gpu(1000), on_gpu(10)
    with Courtesy():
        del dying
        view = living[2:4]
        new_on_gpu = torch.ones(3, device="cuda")
        new_on_cpu = torch.ones(3)

    assert str(view.device) == "cuda:0"
    assert view.untyped_storage()._cdata == living.untyped_storage()._cdata
    assert str(new_on_gpu.device) == "cuda:0"
    assert new_on_cpu.device.type == "cpu"
    assert allocated() == 1024


def test_a_second_yield_takes_what_came_since():
    first = on_gpu(10)
    lender = Courtesy()
    lender.yield_memory()
    second = on_gpu(20)
    lender.yield_memory()

    assert allocated() == 0
    lender.restore()
    assert torch.equal(first.cpu(), torch.arange(10.0))
    assert torch.equal(second.cpu(), torch.arange(20.0))
    assert allocated() == 1024


def test_restore_comes_after_yield():
    lender = Courtesy()
    with pytest.raises(MemlabError, match=r"^nothing to restore: yield_memory\(\) comes first$"):
        lender.restore()
    with lender:
        lender.restore()
    with pytest.raises(MemlabError, match="nothing to restore"):
        lender.restore()


def test_an_exception_inside_restores():
    tensor = on_gpu(4)

    with pytest.raises(KeyError), Courtesy():
        raise KeyError("inside")
    assert str(tensor.device) == "cuda:0"


@pytest.mark.parametrize("chunk", [1000, 2**12, 2**20])
def test_any_sizes_travel_in_chunks(monkeypatch, chunk):
    monkeypatch.setattr(chunked_copies, "CHUNK", chunk)
    tensors = [
        torch.arange(size, dtype=torch.int32, device="cuda") for size in (1, 999, 250, 1024, 70_000)
    ]
    arrived = []

    @contextlib.contextmanager
    def watched(what, total):
        yield arrived.append

    monkeypatch.setattr(lending, "progress_bar", watched)
    with Courtesy():
        assert all(tensor.device.type == "cpu" for tensor in tensors)
        assert all(each == tensor[each] for tensor in tensors for each in (0, len(tensor) - 1))

    total = sum(tensor.nbytes for tensor in tensors)
    assert arrived[-1] == total
    assert arrived == sorted(arrived)
    assert len(arrived) >= total // chunk
    assert [tensor.sum().item() for tensor in tensors] == [
        n * (n - 1) // 2 for n in map(len, tensors)
    ]


def test_lent_tensors_lie_in_few_pinned_blocks():
    tensors = [torch.full((size,), float(size), device="cuda") for size in range(1, 200)]
    with Courtesy():
        begin_end = sorted(
            (tensor.data_ptr(), tensor.data_ptr() + -(-tensor.nbytes // 512) * 512)
            for tensor in tensors
        )
        pieces = 1 + sum(before[1] != after[0] for before, after in pairwise(begin_end))
        assert pieces <= len(lay_out([tensor.nbytes for tensor in tensors]).blocks) == 4
        assert all(tensor.data_ptr() % 64 == 0 for tensor in tensors)
        tensors[3][0] = 99
        assert [tensor[-1].item() for tensor in tensors[:4]] == [1, 2, 3, 4]

    assert tensors[3].tolist() == [99, 4, 4, 4]


def test_nothing_is_kept_afterwards():
    tensor = on_gpu(4)
    lender = Courtesy()
    with lender:
        host = weakref.ref(tensor.untyped_storage())
    watched = weakref.ref(tensor)

    assert host() is None
    del tensor
    assert watched() is None
    assert allocated() == 0


def test_a_report_while_lent_shows_the_cpu(capsys):
    linear = torch.nn.Linear(1024, 1024).cuda()
    reporter = MemReporter(linear)
    with Courtesy():
        reporter.report(device=torch.device("cuda:0"))
        text = capsys.readouterr().out
        reporter.report(device=torch.device("cpu"))
        on_cpu = capsys.readouterr().out
    reporter.report(device=torch.device("cuda:0"))

    assert "weight" not in text
    assert "weight                                          (1024, 1024)     4.00M\n" in on_cpu
    assert "The allocated memory on cuda:0: 4.00M" in capsys.readouterr().out


def test_without_any_gpu_tensor_nothing_happens():
    host = torch.ones(3)
    expected = copy.deepcopy(host)
    with Courtesy():
        gc.collect()

    assert torch.equal(host, expected)


def test_one_gpu_alone():
    here, there = on_gpu(3), torch.ones(5, device="cuda:1")
    lender = Courtesy()
    lender.yield_memory(device=1)

    assert (str(here.device), str(there.device)) == ("cuda:0", "cpu")
    assert (allocated(0), allocated(1)) == (512, 0)
    lender.yield_memory("cuda:0")
    assert allocated() == 0
    lender.restore()
    assert (str(here.device), str(there.device)) == ("cuda:0", "cuda:1")
    with pytest.raises(UnknownDeviceError, match=r"cuda:0, cuda:1"):
        lender.yield_memory(device=2)
    with pytest.raises(UsageError, match=r"lends CUDA GPUs, and 'cpu' is none"):
        lender.yield_memory(device="cpu")
