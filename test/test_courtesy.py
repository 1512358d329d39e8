"""Courtesy: everything leaves the GPU, and comes back as it was."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
import torch._dynamo  # optimizers import it, and it wraps torch.manual_seed

from pytorch_memlab import courtesy
from pytorch_memlab.courtesy import Courtesy
from pytorch_memlab.errors import MemlabError
from pytorch_memlab.mem_reporter import MemReporter
from pytorch_memlab.simulation import simulate


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


def make_trainer(kind: type[torch.optim.Optimizer]):
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    model[2].weight = model[0].weight
    model.register_parameter("unused", torch.nn.Parameter(torch.zeros(3)))
    model.cuda()
    return model, kind(model.parameters(), lr=0.1)


def train(kind: type[torch.optim.Optimizer], lend_at: str) -> list[float]:
    model, optimizer = make_trainer(kind)
    losses = []
    lender = Courtesy()

    def point(name: str) -> None:
        if name == lend_at:
            lender.yield_memory()
            assert allocated() == 0
            lender.restore()

    for step in range(3):
        inp = torch.full((4, 8), float(step), device="cuda")
        point("before forward")
        loss = model(inp).square().mean()
        point("between forward and backward")
        loss.backward()
        point("before step")
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize(
    "lend_at", ["before forward", "between forward and backward", "before step"]
)
def test_training_goes_on_as_if_nothing_had_happened(kind, lend_at):
    undisturbed = train(kind, "never")

    assert train(kind, lend_at) == undisturbed
    assert undisturbed[0] > undisturbed[-1] or undisturbed[0] != undisturbed[1]


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
    copies = []

    def copy_one(storage):
        if copies:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        copies.append(storage.cpu())
        return copies[0]

    monkeypatch.setattr(courtesy, "copy_to_host", copy_one)
    lender = Courtesy()
    with pytest.raises(
        MemlabError, match=r"^no room for 2\.00K in host memory; nothing was moved$"
    ):
        lender.yield_memory()

    assert {str(tensor.device) for tensor in tensors} == {"cuda:0"}
    assert allocated() == 2048
    with pytest.raises(MemlabError, match="nothing to restore"):
        lender.restore()


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupt_half_way_moves_everything_back(monkeypatch, when):
    tensors = [on_gpu(256), on_gpu(300)]
    view = tensors[1][5:]
    calls = []
    take_away = courtesy.take_away

    def interrupted(*args):
        calls.append(args)
        if when == "after" or len(calls) == 1:
            take_away(*args)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(courtesy, "take_away", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Courtesy().yield_memory()
    calls.clear()

    assert allocated() == 1024 + 1536
    assert torch.equal(tensors[0].cpu(), torch.arange(256.0))
    assert torch.equal(view.cpu(), torch.arange(5.0, 300.0))
    assert view.untyped_storage()._cdata == tensors[1].untyped_storage()._cdata


@pytest.mark.parametrize("gpu", ["64MiB"], indirect=True)
def test_a_gpu_that_has_no_room_any_more_can_be_restored_later(gpu):
    small, large = on_gpu(3), torch.full((2**23,), 3.0, device="cuda")
    lender = Courtesy()
    lender.yield_memory()
    intruder = torch.empty(40 * 2**20, dtype=torch.uint8, device="cuda")
    with pytest.raises(
        MemlabError,
        match=r"^no room on cuda:0: 32\.00M are still in host memory, safe; call restore\(\) again",
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

    assert "The allocated memory on cuda:0: 0.00B" in text
    assert "weight" not in text
    assert "weight                                          (1024, 1024)     4.00M\n" in on_cpu
    assert "The allocated memory on cuda:0: 4.00M" in capsys.readouterr().out


def test_without_any_gpu_tensor_nothing_happens():
    host = torch.ones(3)
    expected = copy.deepcopy(host)
    with Courtesy():
        gc.collect()

    assert torch.equal(host, expected)
