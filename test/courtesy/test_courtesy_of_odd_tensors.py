"""Courtesy with tensors that are hard to find or to move, and inside transforms and captures."""

from __future__ import annotations

import inspect

import pytest
import torch
from support.gpu_tensors import allocated, on_gpu
from torch._subclasses import FakeTensorMode

from pytorch_memlab.courtesy import Courtesy
from pytorch_memlab.errors import MemlabError
from pytorch_memlab.simulation import simulate

pytestmark = pytest.mark.usefixtures("gpu")


SPARSE_KEEPS_STORAGES = hasattr(torch._C._autograd.SavedTensor, "data")
"""torch 2.6 gives a sparse tensor other storages when it lends its memory."""


def test_sparse_tensors():
    indices = torch.tensor([[0, 2]], device="cuda")
    sparse = torch.sparse_coo_tensor(indices, on_gpu(2), (4,), check_invariants=False)
    del indices
    with Courtesy():
        assert allocated() == 0
        if SPARSE_KEEPS_STORAGES:
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


@pytest.mark.skipif(
    "GradientEdge" not in inspect.getsource(torch.autograd._make_grads),
    reason="torch 2.6 begins backward at tensors alone",
)
def test_what_a_gradient_edge_alone_keeps():
    weight = on_gpu(1000).requires_grad_()
    out = weight.exp()
    edge = torch.autograd.graph.get_gradient_edge(out)
    expected = out.tolist()
    del out
    with Courtesy():
        assert allocated() == 0
    torch.autograd.backward((edge,), grad_tensors=(torch.ones(1000, device="cuda"),))

    assert weight.grad.tolist() == expected


def test_what_python_does_not_show_stays_and_is_named(freeze):
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
    with pytest.raises(
        MemlabError, match=r"^1 captured CUDA graph would use the present addresses"
    ):
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


def test_a_tensor_with_a_dispatcher_is_lent_where_it_is():
    class Counted(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    whole = on_gpu(4)
    tensor = torch.Tensor._make_subclass(Counted, whole)
    with Courtesy():
        assert allocated() == 0
        assert str(tensor.device) == "cuda:0"

    assert whole.tolist() == [0, 1, 2, 3]
    assert tensor.data_ptr() == whole.data_ptr()
