"""torch.nn.parallel and torch.cuda.nccl: copies between the GPUs of one process."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.cuda import nccl
from torch.nn.parallel import comm

from pytorch_memlab import simulate

MB = 2**20


@pytest.fixture(autouse=True)
def gpus() -> Any:
    with simulate("24GiB", count=3) as machine, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "NCCL's own buffers are not counted")
        yield machine


def allocated() -> list[int]:
    return [torch.cuda.memory_allocated(index) for index in range(3)]


def devices(tensors: Any) -> list[str]:
    return [str(tensor.device) for tensor in tensors]


@pytest.mark.parametrize("source", ["cpu", "cuda:0", "cuda:1"])
def test_broadcast_copies_to_every_other_gpu(source: str) -> None:
    tensor = torch.arange(300.0, device=source)
    before = allocated()
    copies = comm.broadcast(tensor, [0, torch.device("cuda:1"), "cuda:2"])
    assert devices(copies) == ["cuda:0", "cuda:1", "cuda:2"]
    assert all(torch.equal(one.cpu(), tensor.cpu()) for one in copies)
    taken = [after - b for after, b in zip(allocated(), before, strict=True)]
    assert taken == [0 if source == f"cuda:{index}" else 1536 for index in range(3)]


def test_broadcast_into_tensors() -> None:
    tensor = torch.arange(4.0, device="cuda:1")
    out = [torch.zeros(4, device="cuda:0"), torch.zeros(4, device="cuda:2")]
    assert comm.broadcast(tensor, out=out) is out
    assert [one.tolist() for one in out] == [[0.0, 1.0, 2.0, 3.0]] * 2
    with pytest.raises(
        RuntimeError, match=r"same shape as the source tensor \[4\], but .* has shape"
    ):
        comm.broadcast(tensor, out=[torch.zeros(5, device="cuda:0")])
    with pytest.raises(RuntimeError, match="CUDA tensors, but output tensor at index 0 has device"):
        comm.broadcast(tensor, out=[torch.zeros(4)])


def mixed_tensors() -> list[torch.Tensor]:
    """Of several types, one of them sparse."""
    sparse = torch.sparse_coo_tensor([[0, 2]], [3.0, 4.0], (5,), device="cuda")
    return [
        torch.arange(6.0, device="cuda").view(2, 3),
        torch.arange(4, device="cuda"),
        sparse,
        torch.ones(2, 2, device="cuda"),
        torch.arange(3.0, device="cuda").double(),
        sparse.double(),
        torch.zeros(1000, device="cuda"),
    ]


@pytest.mark.parametrize("buffer_size", [1, 100, 10 * MB])
def test_coalesced_copies_are_those_of_each_tensor(buffer_size: int) -> None:
    tensors = mixed_tensors()
    copies = comm.broadcast_coalesced(tensors, [0, 1, 2], buffer_size)
    assert all(one is tensor for one, tensor in zip(copies[0], tensors, strict=True))
    for index in (1, 2):
        assert devices(copies[index]) == [f"cuda:{index}"] * len(tensors)
        assert [one.type() for one in copies[index]] == [one.type() for one in tensors]
        assert all(one._version == 0 for one in copies[index])
        for one, tensor in zip(copies[index], tensors, strict=True):
            assert torch.equal(one.to_dense().cpu(), tensor.to_dense().cpu())
    with pytest.raises(RuntimeError, match=r"All tensors must be on devices\[0\]: 1"):
        comm.broadcast_coalesced(tensors, [1, 0])


def test_coalesced_copies_lie_in_buffers_of_the_size_asked_for() -> None:
    tensors = [torch.zeros(MB // 4, device="cuda") for _ in range(6)]
    before = allocated()
    copies = comm.broadcast_coalesced(tensors, [0, 1], buffer_size=3 * MB)
    # Two of 1 MiB are a group: another one would reach the limit.
    assert allocated()[0] == before[0]
    assert allocated()[1] == 6 * MB
    assert len({one.untyped_storage()._cdata for one in copies[1]}) == 3
    assert torch.cuda.max_memory_allocated(0) == before[0] + 2 * MB


def test_reduce_add_sums_where_it_is_asked_to() -> None:
    tensors = [torch.full((300,), index + 1.0, device=f"cuda:{index}") for index in range(3)]
    before = allocated()
    total = comm.reduce_add(tensors, destination=1)
    assert [after - b for after, b in zip(allocated(), before, strict=True)] == [0, 1536, 0]
    # NCCL sends, so nothing comes to the GPU but the sum.
    assert torch.cuda.max_memory_allocated(1) == before[1] + 1536
    assert (str(total.device), total.unique().tolist()) == ("cuda:1", [6.0])


@pytest.mark.parametrize("buffer_size", [1, 10 * MB])
def test_coalesced_sums_are_those_one_by_one_in_their_order(buffer_size: int) -> None:
    tensors = mixed_tensors()
    everywhere = [[tensor.to(f"cuda:{index}") for tensor in tensors] for index in range(3)]
    one_by_one = [comm.reduce_add(group, 0) for group in zip(*everywhere, strict=True)]
    together = comm.reduce_add_coalesced(everywhere, 0, buffer_size)
    assert [one.type() for one in together] == [one.type() for one in tensors]
    for one, other, tensor in zip(together, one_by_one, tensors, strict=True):
        assert torch.equal(one.to_dense().cpu(), other.to_dense().cpu())
        assert torch.equal(one.to_dense().cpu(), (tensor * 3).to_dense().cpu())


def test_types_have_the_names_of_cuda() -> None:
    assert [one.type() for one in mixed_tensors()[:3]] == [
        "torch.cuda.FloatTensor",
        "torch.cuda.LongTensor",
        "torch.cuda.sparse.FloatTensor",
    ]
    assert torch.ones(1, dtype=torch.complex64, device="cuda").type() == (
        "torch.cuda.ComplexFloatTensor"
    )


@pytest.mark.parametrize("source", ["cpu", "cuda:0"])
@pytest.mark.parametrize(("dim", "sizes"), [(0, None), (0, (2, 3)), (1, None), (-1, (5, 5))])
def test_scatter_and_gather_are_each_others_opposite(
    source: str, dim: int, sizes: tuple[int, ...] | None
) -> None:
    tensor = torch.randn(5, 10, device=source)
    parts = comm.scatter(tensor, (0, 1), sizes, dim)
    assert devices(parts) == ["cuda:0", "cuda:1"]
    expected = tensor.chunk(2, dim) if sizes is None else tensor.split(sizes, dim)
    for part, one in zip(parts, expected, strict=True):
        assert torch.equal(part.cpu(), one.cpu())
        is_view = source == "cuda:0" == str(part.device)
        assert (part.untyped_storage()._cdata == tensor.untyped_storage()._cdata) is is_view
    for destination in (torch.device("cpu"), "cuda:0", "cuda:2", None):
        together = comm.gather(parts, dim, destination)
        assert str(together.device) == str(destination or "cuda:0")
        assert torch.equal(together.cpu(), tensor.cpu())
    out = torch.zeros(5, 10, device="cuda:1")
    assert comm.gather(parts, dim, out=out) is out
    assert torch.equal(out.cpu(), tensor.cpu())
    out = [torch.zeros_like(part) for part in reversed(parts)]
    if sizes is None:
        assert comm.scatter(tensor, out=out, dim=dim) == tuple(out)
        assert torch.equal(torch.cat([one.cpu() for one in out], dim), tensor.cpu())


def test_parts_come_on_the_streams_that_are_named() -> None:
    side = torch.cuda.Stream(1)
    parts = comm.scatter(torch.ones(2000), [0, 1], streams=[None, side])
    assert len(parts) == 2
    assert {segment["device"]: segment["stream"] for segment in torch.cuda.memory_snapshot()} == {
        0: 0,
        1: side.cuda_stream,
    }
    assert torch.cuda.current_stream(1) == torch.cuda.default_stream(1)


def test_what_does_not_fit_is_refused() -> None:
    tensor = torch.ones(4, 3, device="cuda")
    with pytest.raises(RuntimeError, match="to sum exactly to 4"):
        comm.scatter(tensor, [0, 1], [2, 3])
    for sizes in ([1, 1, 2], [4]):
        with pytest.raises(RuntimeError, match=rf"= 2 and len\(chunk_sizes\) = {len(sizes)}"):
            comm.scatter(tensor, [0, 1], sizes)
    with pytest.raises(RuntimeError, match=r"at index 1 \(was 2\) to match .* \(expected 1\)"):
        comm.scatter(tensor, [0, 1], streams=[None, torch.cuda.Stream(2)])
    wide = torch.ones(4, 3, device="cuda:1")
    with pytest.raises(RuntimeError, match="Expected 4, but got total size 2"):
        comm.scatter(tensor, out=[wide[:2]])
    with pytest.raises(RuntimeError, match=r"along scatter dim 1 .* Expected 3, but got total"):
        comm.scatter(tensor, out=[wide[:, :2]], dim=-1)
    for misfit in (wide[:, :2], wide[None], wide[0]):
        with pytest.raises(RuntimeError, match="Output tensor at index 1 has incorrect shape"):
            comm.scatter(tensor, out=[wide[:2], misfit])
    with pytest.raises(RuntimeError, match=r"at index 0 \(was 2\) to match .* \(expected 1\)"):
        comm.scatter(tensor, out=[wide], streams=[torch.cuda.Stream(2)])
    with pytest.raises(RuntimeError, match=r"input tensors .* but tensor at index 1 has device"):
        comm.gather([tensor, tensor.cpu()])
    with pytest.raises(RuntimeError, match=r"index 1 has invalid shape \[2, 3\], but .* \[4, 3\]"):
        comm.gather([tensor, tensor[:2]], dim=1)
    with pytest.raises(RuntimeError, match=r"index 1 has 1 dimensions, \(expected 2\)"):
        comm.gather([tensor, tensor[0]], dim=1)
    with pytest.raises(RuntimeError, match="invalid device ordinal: cuda:7"):
        comm.broadcast(tensor, [0, 7])


def test_gathering_keeps_channels_last() -> None:
    images = [
        torch.ones(2, 3, 4, 4, device=f"cuda:{index}").to(memory_format=torch.channels_last)
        for index in range(2)
    ]
    assert comm.gather(images).is_contiguous(memory_format=torch.channels_last)
    assert comm.gather([images[0], images[1].contiguous()]).is_contiguous()


def test_nccl_in_one_process() -> None:
    def make() -> list[torch.Tensor]:
        return [torch.arange(6.0, device=f"cuda:{index}") + index for index in range(3)]

    inputs = make()
    assert nccl.is_available(inputs)
    before = allocated()
    nccl.all_reduce(inputs)
    assert [one.tolist() for one in inputs] == [[3.0, 6.0, 9.0, 12.0, 15.0, 18.0]] * 3
    inputs = make()
    nccl.broadcast(inputs, root=0)
    assert inputs[2].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    inputs = make()
    nccl.reduce(inputs, root=1, op=nccl.MAX if hasattr(nccl, "MAX") else 2)
    assert inputs[1].tolist() == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    outputs = [torch.empty(2, device=f"cuda:{index}") for index in range(3)]
    nccl.reduce_scatter(make(), outputs)
    assert [one.tolist() for one in outputs] == [[3.0, 6.0], [9.0, 12.0], [15.0, 18.0]]
    wide = [torch.empty(6, device=f"cuda:{index}") for index in range(3)]
    nccl.all_gather(outputs, wide)
    assert wide[2].tolist() == [3.0, 6.0, 9.0, 12.0, 15.0, 18.0]
    assert [after - b for after, b in zip(allocated(), before, strict=True)] == [1024] * 3
    with pytest.raises(RuntimeError, match="on another GPU, not on cuda:0, cuda:0, cpu"):
        nccl.all_reduce([torch.ones(1, device="cuda"), torch.ones(1).cuda(), torch.ones(1)])


class Network(nn.Module):
    """A batch through two layers; says where each replica ran."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 8)
        self.register_buffer("scale", torch.full((1,), 2.0))
        self.seen: list[tuple[str, int]] = []

    def forward(self, x: torch.Tensor, *, factor: float = 1.0) -> torch.Tensor:
        self.seen.append((str(x.device), torch.cuda.current_device()))
        return self.second(self.first(x).relu()) * self.scale * factor


@pytest.mark.parametrize("ids", [[0], [0, 1], [0, 1, 2], [1, 2], None])
def test_data_parallel_computes_as_one_gpu_does(ids: list[int] | None) -> None:
    torch.manual_seed(0)
    plain = Network()
    first = 0 if ids is None else ids[0]
    parallel = nn.DataParallel(copy.deepcopy(plain).to(f"cuda:{first}"), ids)
    x = torch.randn(12, 64)
    expected = plain(x, factor=3.0)
    expected.square().sum().backward()
    result = parallel(x, factor=3.0)
    assert str(result.device) == f"cuda:{first}"
    assert torch.allclose(result.cpu(), expected, atol=1e-5)
    result.square().sum().backward()
    for weight, other in zip(parallel.parameters(), plain.parameters(), strict=True):
        assert weight.grad is not None
        assert str(weight.grad.device) == f"cuda:{first}"
        assert torch.allclose(weight.grad.cpu(), other.grad, rtol=1e-4, atol=1e-4)
    used = [0, 1, 2] if ids is None else ids
    assert sorted(parallel.module.seen) == [(f"cuda:{index}", index) for index in used]


def test_replicas_take_their_copies_of_the_weights_and_give_them_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "0")  # one for each call before torch 2.9
    network = Network().cuda()
    parallel = nn.DataParallel(network, [0, 1])
    weights = sum(weight.nbytes for weight in network.parameters())
    with torch.no_grad():
        parallel(torch.ones(4, 64, device="cuda"))
    assert torch.cuda.memory_allocated(1) == 8_519_680  # the workspace of its products
    coalesced = -(-weights // 512) * 512
    activations = 2 * 2 * 256 * 4 + 2 * 512 + 512  # two hidden, the result and its product, x
    assert torch.cuda.max_memory_allocated(1) <= 8_519_680 + coalesced + 512 + activations
    assert torch.cuda.max_memory_allocated(1) >= 8_519_680 + coalesced


def test_a_module_of_another_gpu_is_refused() -> None:
    parallel = nn.DataParallel(Network().cuda(1), [0, 1])
    with pytest.raises(
        RuntimeError, match=r"on device cuda:0 \(device_ids\[0\]\) but found one of"
    ):
        parallel(torch.ones(4, 64))


def test_the_functions_behind_it() -> None:
    network = Network().cuda()
    x = torch.ones(5, 64, device="cuda", requires_grad=True)
    replicas = nn.parallel.replicate(network, [0, 2])
    parts = nn.parallel.scatter(x, [0, 2])
    outputs = nn.parallel.parallel_apply(replicas, parts)
    assert devices(outputs) == ["cuda:0", "cuda:2"]
    together = nn.parallel.gather(outputs, 1)
    assert together.shape == (5, 8)
    together.sum().backward()
    assert x.grad is not None
    assert (str(x.grad.device), x.grad.shape) == ("cuda:0", (5, 64))
    result = nn.parallel.data_parallel(network, x, [0, 1])
    assert torch.allclose(result, network(x))


def test_a_sparse_tensor_that_grows_in_place_stays_on_its_gpu() -> None:
    tensor = torch.sparse_coo_tensor([[0, 2]], [3.0, 4.0], (500,), device="cuda:1")
    before = allocated()[1]
    more = torch.sparse_coo_tensor([range(300)], torch.ones(300), (500,), device="cuda:1")
    taken = allocated()[1] - before
    assert taken == 2560 + 1536
    tensor.add_(more)
    assert str(tensor.device) == str(tensor._values().device) == "cuda:1"
    assert tensor.to_dense().sum().item() == 307
    del more
    # Indices and values of 302 elements in place of those of two.
    assert allocated()[1] == before - 1024 + 2560 + 1536
