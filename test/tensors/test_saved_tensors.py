"""Tensors that only C++ holds, on the host: a simulated GPU shows Python more of them."""

from __future__ import annotations

import torch
from support.saved_tensors import knows_saved_tensors
from torch.utils.checkpoint import checkpoint

from pytorch_memlab.tensors.live_objects import instances_of, unreferenced
from pytorch_memlab.tensors.moves import views_in_host_memory
from pytorch_memlab.tensors.saved import grad_fn, name_of, saved_by_graphs


def saved_by(tensors):
    """The tensors that the graphs behind some tensors save, with the names of the nodes."""
    return [(name_of(node), saved) for node, saved in saved_by_graphs(map(grad_fn, tensors))]


def normalized() -> torch.Tensor:
    leaf = torch.ones(3001, 4, requires_grad=True)
    return torch.nn.functional.layer_norm(leaf, (4,))


@knows_saved_tensors
def test_what_no_python_object_ever_stood_for_is_found():
    out = normalized()
    saved = [(node, tuple(tensor.size())) for node, tensor in saved_by([out])]

    mean, rstd = [("NativeLayerNormBackward0", (3001, 1))] * 2
    assert [mean, rstd] == [each for each in saved if each[1] == (3001, 1)]
    assert saved[-1] == ("AccumulateGrad", (3001, 4))


@knows_saved_tensors
def test_courtesy_finds_it_too():
    out = normalized()
    found = [tensor for views in views_in_host_memory().values() for tensor in views]

    assert len([tensor for tensor in found if tensor.size() == (3001, 1)]) == 2
    del out


@knows_saved_tensors
def test_a_graph_that_backward_freed_holds_its_leaves_only():
    out = normalized().sum()
    out.backward()

    assert [node for node, _ in saved_by([out])] == ["AccumulateGrad"]


@knows_saved_tensors
def test_a_graph_deeper_than_the_stack():
    tensor = leaf = torch.ones((), requires_grad=True)
    for _ in range(5000):
        tensor = -tensor

    assert [found is leaf for _, found in saved_by([tensor])] == [True]


@knows_saved_tensors
def test_tensors_that_only_cpp_references():
    held_alone = torch.ones(3, dtype=torch.complex64)
    held_and_viewed = torch.ones(4, dtype=torch.complex64)
    view = held_and_viewed.view(2, 2)
    view_of_nobody = torch.ones(5, dtype=torch.complex64).view(1, 5)
    tensors = instances_of(torch.Tensor)
    hidden = unreferenced(tensors)
    sizes = {tuple(t.size()): id(t) in hidden for t in tensors if t.dtype is torch.complex64}

    assert sizes == {(3,): False, (4,): False, (2, 2): False, (5,): True, (1, 5): False}
    del held_alone, view, view_of_nobody


@knows_saved_tensors
def test_what_a_checkpointed_region_waits_with():
    leaf = torch.ones(3001, requires_grad=True)

    def layer(inp):
        return (inp * inp).exp()

    out = leaf
    for _ in range(2):
        out = checkpoint(layer, out, use_reentrant=False)
    saved = {(node, tensor.data_ptr()) for node, tensor in saved_by([out])}

    assert len({address for node, address in saved if node == "ExpBackward0"}) == 2
    assert ("MulBackward0", leaf.data_ptr()) in saved
    out.sum().backward()  # nothing was recomputed too early


@knows_saved_tensors
def test_what_hooks_pack_besides_tensors():
    leaf = torch.ones(3001, requires_grad=True)
    offloaded = []

    def pack(tensor):
        offloaded.append(tensor.clone())
        return "cuda:0", [offloaded[-1]], {"shape": offloaded[-1].size()}

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed[1][0]):
        out = leaf.exp()
    found = [tensor for node, tensor in saved_by([out]) if node == "ExpBackward0"]

    assert [tensor is offloaded[0] for tensor in found] == [True]


@knows_saved_tensors
def test_what_a_python_function_keeps_in_containers():
    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, inp):
            ctx.kept = [inp + 1, {"two": (inp + 2,)}]
            ctx.itself = [ctx.kept]
            ctx.itself.append(ctx.itself)
            return inp * 1

        @staticmethod
        def backward(ctx, grad):
            return grad

    out = Keeps.apply(torch.zeros((), requires_grad=True))
    kept = [tensor.item() for node, tensor in saved_by([out]) if node == "KeepsBackward"]

    assert set(kept) == {1.0, 2.0}
    out.grad_fn.itself.clear()
