"""Courtesy: everything leaves the GPU, and comes back as it was."""

from __future__ import annotations

import contextlib
import copy
import gc
import signal
import sys
import warnings
import weakref
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from support.courtesy_programs import PROGRAMS, run
from torch._subclasses import FakeTensorMode

import pytorch_memlab
from pytorch_memlab.courtesy import Courtesy, copies, host_blocks, lending
from pytorch_memlab.courtesy.host_blocks import lay_out
from pytorch_memlab.errors import MemlabError, UnknownDeviceError, UsageError
from pytorch_memlab.mem_reporter import MemReporter
from pytorch_memlab.simulation import simulate
from pytorch_memlab.tensors import moves
from pytorch_memlab.tensors.live_objects import instances_of


@pytest.fixture(autouse=True)
def gpu(request):
    with simulate(getattr(request, "param", "24GiB"), count=2):
        yield


def allocated(device: int = 0) -> int:
    return torch.cuda.memory_allocated(device)


def on_gpu(*size: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(size).numel()), device="cuda").view(size).clone()


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


def make_trainer(kind: type[torch.optim.Optimizer]):
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    model[2].weight = model[0].weight
    model.register_parameter("unused", torch.nn.Parameter(torch.zeros(3)))
    model.cuda()
    return model, kind(model.parameters(), lr=0.1)


def test_model_gradients_and_optimizer_state_are_cpu_tensors_meanwhile():
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


def test_sparse_tensors():
    indices = torch.tensor([[0, 2]], device="cuda")
    sparse = torch.sparse_coo_tensor(indices, on_gpu(2), (4,), check_invariants=False)
    del indices
    with Courtesy():
        assert allocated() == 0
        assert str(sparse.device) == "cuda:0"

    assert torch.equal(sparse.to_dense().cpu(), torch.tensor([0.0, 0.0, 1.0, 0.0]))
    assert sparse.device == torch.device("cuda:0")


def test_a_storage_that_only_python_holds():
    storage = on_gpu(300).untyped_storage()
    expected = bytes(storage.cpu())
    with Courtesy():
        assert allocated() == 0

    assert bytes(storage.cpu()) == expected
    assert str(storage.device) == "cuda:0"


def test_inference_tensors_and_conjugate_views():
    with torch.inference_mode():
        frozen = on_gpu(4)
    conjugate = torch.full((2,), 1 + 2j, device="cuda").conj()
    with torch.inference_mode(), Courtesy():
        assert allocated() == 0

    assert torch.equal(frozen.cpu(), torch.arange(4.0))
    assert torch.equal(conjugate.cpu().resolve_conj(), torch.full((2,), 1 - 2j))


def test_tensors_that_die_or_come_meanwhile():
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
    monkeypatch.setattr(copies, "CHUNK", 1000)
    lines = 10**6 - lend_interrupted(10**6)
    reached = [lend_interrupted(after) for after in range(1, lines, lines // 60)]

    assert len(reached) >= 60
    assert max(reached) <= 0


@pytest.mark.parametrize("chunk", [1000, 2**12, 2**20])
def test_any_sizes_travel_in_chunks(monkeypatch, chunk):
    monkeypatch.setattr(copies, "CHUNK", chunk)
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


@pytest.mark.parametrize("gpu", ["64MiB"], indirect=True)
def test_a_gpu_that_has_no_room_any_more_can_be_restored_later(gpu):
    small, large = on_gpu(3), torch.full((2**23,), 3.0, device="cuda")
    lender = Courtesy()
    lender.yield_memory()
    intruder = torch.empty(40 * 2**20, dtype=torch.uint8, device="cuda")
    with pytest.raises(
        MemlabError,
        match=r"^no room on cuda:0: 32\.0 MiB are still in host memory, safe; call restore\(\)",
    ):
        lender.restore()

    assert str(small.device) == "cuda:0"
    assert large.device.type == "cpu"
    assert large[-1].item() == 3.0
    del intruder
    torch.cuda.empty_cache()
    lender.restore()
    assert str(large.device) == "cuda:0"
    assert large[-1].item() == 3.0


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


def test_a_report_meanwhile_shows_the_cpu(capsys):
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


@pytest.mark.parametrize("place", ["cuda:1", "cpu"])
def test_restored_elsewhere(place):
    model, optimizer = make_trainer(torch.optim.Adam)
    inp = on_gpu(4, 16)[:, ::2]
    view_of_nobody = on_gpu(8).view(2, 4)
    model(inp).sum().backward()
    optimizer.step()
    state = [value for each in optimizer.state.values() for value in each.values()]
    everything = [*model.parameters(), *state, inp, view_of_nobody]
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    expected = [tensor.tolist() for tensor in everything]
    lender = Courtesy()
    lender.yield_memory()
    with pytest.raises(UnknownDeviceError):
        lender.restore("cuda:7")
    lender.restore(place)

    on_cpu = [value for value in state if value.dim() == 0]  # Adam's steps always were there
    moved = [tensor for tensor in everything if all(tensor is not each for each in on_cpu)]
    assert {str(tensor.device) for tensor in (*moved, *gradients)} == {place}
    assert [tensor.tolist() for tensor in everything] == expected
    assert allocated(0) == 0
    assert inp.stride() == (16, 2)
    optimizer.zero_grad()
    model(inp).sum().backward()
    optimizer.step()
    with pytest.raises(MemlabError, match="nothing to restore"):
        lender.restore()


@pytest.mark.parametrize("place", ["cuda:1", "cpu"])
def test_a_living_graph_cannot_be_restored_elsewhere(place):
    weight = on_gpu(4).requires_grad_()
    loss = (weight * weight).sum()
    other = on_gpu(3)
    lender = Courtesy()
    lender.yield_memory()
    with pytest.raises(MemlabError, match=r"^\d tensors? cannot change device: a graph of"):
        lender.restore(place)

    assert other.device.type == "cpu"
    del loss
    lender.restore(place)
    assert {str(weight.device), str(other.device)} == {place}
    assert weight.tolist() == [0, 1, 2, 3]
    weight.sum().backward()
    assert weight.grad.tolist() == [1] * 4


def test_a_step_may_be_restored_where_it_was_after_elsewhere_was_refused():
    weight = on_gpu(4).requires_grad_()
    loss = (weight * weight).sum()
    lender = Courtesy()
    lender.yield_memory()
    with pytest.raises(MemlabError, match="cannot change device"):
        lender.restore("cuda:1")
    lender.restore()

    loss.backward()
    assert weight.grad.tolist() == [0, 2, 4, 6]


def test_what_a_gradient_edge_alone_keeps():
    weight = on_gpu(1000).requires_grad_()
    out = weight.exp()
    edge = torch.autograd.graph.get_gradient_edge(out)
    expected = out.tolist()
    del out
    with Courtesy():
        assert allocated() == 0
    torch.autograd.backward(edge, grad_tensors=torch.ones(1000, device="cuda"))

    assert weight.grad.tolist() == expected


def test_what_nobody_shows_stays_and_is_named(freeze):
    hidden = on_gpu(1000)
    freeze()
    lender = Courtesy()
    with pytest.warns(UserWarning, match=r"^4\.0 KiB stay on cuda:0: neither Python's objects"):
        lender.yield_memory()
    lender.restore()

    assert str(hidden.device) == "cuda:0"
    assert torch.equal(hidden.cpu(), torch.arange(1000.0))


def test_a_captured_graph_is_refused(monkeypatch):
    class CUDAGraph:
        pass

    tensor = on_gpu(3)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", CUDAGraph)
    graph = CUDAGraph()
    with pytest.raises(MemlabError, match=r"^1 captured CUDA graph would go on with the addresses"):
        Courtesy().yield_memory()

    assert str(tensor.device) == "cuda:0"
    del graph
    with Courtesy():
        assert tensor.device.type == "cpu"


def test_a_stream_of_ones_own_does_not_get_the_memory():
    tensor = on_gpu(1000)
    with torch.cuda.stream(torch.cuda.Stream()), Courtesy():
        pass

    (segment,) = torch.cuda.memory_snapshot()
    assert segment["stream"] == 0
    assert torch.equal(tensor.cpu(), torch.arange(1000.0))


def test_a_default_device_and_a_subclass_do_not_matter():
    class Named(torch.Tensor):
        pass

    tensor = on_gpu(4).as_subclass(Named)
    with torch.device("cuda"), Courtesy():
        assert tensor.device.type == "cpu"

    assert type(tensor) is Named
    assert tensor.tolist() == [0, 1, 2, 3]


def test_shapes_alone_are_lent_too():
    with simulate("24GiB", compute=False):
        model = torch.nn.Linear(1024, 1024).cuda()
        count = torch.tensor([3, 4]).cuda()
        before = allocated()
        lender = Courtesy()
        lender.yield_memory()
        assert allocated() == 0
        lender.restore()

        assert allocated() == before
        assert str(model.weight.device) == "cuda:0"
        assert count.tolist() == [3, 4]


@pytest.mark.parametrize("transform", [torch.func.grad, torch.vmap])
@pytest.mark.parametrize("part", ["yield", "restore"])
def test_inside_a_transformed_function_nothing_moves(transform, part):
    tensor = torch.arange(4.0, device="cuda")
    courtesy = Courtesy()

    def function(inp):
        with pytest.raises(MemlabError, match=r"inside a function that torch.func transforms"):
            courtesy.restore() if part == "restore" else courtesy.yield_memory()
        return (inp * inp).sum()

    if part == "restore":
        courtesy.yield_memory()
    transform(function)(torch.ones(4, 4) if transform is torch.vmap else torch.ones(4))
    assert courtesy.lends == (part == "restore")
    if courtesy.lends:
        courtesy.restore()

    assert tensor.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert tensor.device.type == "cuda"


def test_under_fake_tensors_nothing_moves():
    tensor = torch.ones(4, device="cuda")
    with FakeTensorMode(), pytest.raises(MemlabError, match="inside FakeTensorMode: do so outside"):
        Courtesy().yield_memory()

    assert tensor.device.type == "cuda"
