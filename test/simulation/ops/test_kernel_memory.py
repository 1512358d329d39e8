"""What kernels take besides their results, on simulated GPUs."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.distributed.fsdp

from pytorch_memlab.simulation import simulate
from pytorch_memlab.simulation.hardware.presets import PRESETS
from pytorch_memlab.simulation.ops.reduce_config import reduction_of, staging_of
from pytorch_memlab.simulation.ops.registry import provenances

DEFAULT, LARGE = 8519680, 33554432


@pytest.fixture
def a100() -> Any:
    with simulate("a100") as machine:
        yield machine


def peak_beyond_results(call: Any) -> int:
    """Bytes that a call takes at most besides what stays allocated after it."""
    torch.cuda.reset_peak_memory_stats()
    result = call()
    beyond = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    del result
    return beyond


@pytest.mark.parametrize(("gpu", "size"), [("a100", DEFAULT), ("h100", LARGE), ("b200", LARGE)])
def test_a_thread_keeps_a_cublas_workspace_from_its_first_product_on(gpu, size):
    with simulate(gpu):
        matrix = torch.ones(64, 64, device="cuda")
        before = torch.cuda.memory_allocated()
        for _ in range(2):
            _ = matrix @ matrix
            del _
            assert torch.cuda.memory_allocated() == before + size


def test_backward_passes_and_other_threads_and_streams_have_their_own(a100):
    matrix = torch.ones(64, 64, device="cuda", requires_grad=True)

    def multiply() -> None:
        _ = matrix.detach() @ matrix.detach()

    def workspaces() -> float:
        return (torch.cuda.memory_allocated() - 64 * 64 * 4) / DEFAULT

    multiply()
    assert workspaces() == 1
    with torch.cuda.stream(torch.cuda.Stream()):
        multiply()
    assert workspaces() == 2
    (matrix @ matrix).sum().backward()
    matrix.grad = None
    assert workspaces() == 3
    for _ in range(2):  # the second thread takes over what the first one left
        thread = threading.Thread(target=multiply)
        thread.start()
        thread.join()
        assert workspaces() == 4
    torch._C._cuda_clearCublasWorkspaces()
    assert workspaces() == 0


@pytest.mark.parametrize(
    ("config", "size"), [(":4096:2:16:8", DEFAULT), (":0:0", 0), (":1024:1", 2**20)]
)
def test_the_environment_sets_the_workspace_size(config, size, monkeypatch, a100):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", config)
    vector = torch.ones(128, device="cuda")
    vector.dot(vector)
    assert torch.cuda.memory_allocated() == 512 + size


def test_operands_that_cublas_cannot_read_are_copied(a100):
    matrix = torch.ones(4, 256, 256, device="cuda")
    _ = matrix @ matrix
    expanded = torch.ones((), device="cuda").expand(4, 256, 256)
    strided = torch.ones(4, 512, 512, device="cuda")[:, ::2, ::2]
    size = 4 * 256 * 256 * 4
    assert peak_beyond_results(lambda: matrix @ matrix) == 0
    assert peak_beyond_results(lambda: matrix.mT @ matrix) == 0
    assert peak_beyond_results(lambda: torch.bmm(matrix, expanded)) == size
    assert peak_beyond_results(lambda: torch.bmm(strided, expanded)) == 2 * size
    assert peak_beyond_results(lambda: strided[0] @ matrix[0]) == size // 4


@pytest.mark.parametrize(
    ("sizes", "strides", "reduced", "element", "staged"),
    [  # each as recorded on an H100
        ((512, 10_000), (1, 512), [1], 16, (164626432, 16)),
        ((4, 128, 10_000), (128, 1, 512), [2], 4, (41156608, 16)),
        ((512, 2560), (1, 512), [1], 4, (10485760, 16)),
        ((8, 4096, 16), (65536, 16, 1), [0, 1, 2], 4, (256, 4)),
        ((512, 2560), (2560, 1), [1], 4, None),
        ((512, 2560), (2560, 1), [0], 4, None),
        ((), (), [], 4, None),
    ],
)
def test_reductions_stage_what_was_recorded(sizes, strides, reduced, element, staged):
    reduction = reduction_of(sizes, strides, reduced)
    assert staging_of(reduction, PRESETS["h100"], element) == staged


def test_a_sum_of_another_type_is_cast_first(a100):
    mask = torch.ones(1024, 1024, dtype=torch.bool, device="cuda")
    half = torch.ones(1024, 1024, dtype=torch.float16, device="cuda")
    assert peak_beyond_results(lambda: mask.sum(1)) == 8 * 2**20
    assert peak_beyond_results(lambda: half.sum(1, dtype=torch.float32)) == 0


def test_gradients_are_added_in_place_as_on_a_gpu(a100):
    leaf = torch.ones(2**20, device="cuda", requires_grad=True)
    total = (leaf * leaf).sum()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    total.backward()
    made = torch.cuda.memory_stats()["allocation.all.allocated"] - before
    assert made == 3  # the first gradient, and that of each factor: their sum is one of them
    assert leaf.grad is not None
    assert leaf.grad.unique().tolist() == [2.0]


def test_the_gradient_of_a_maximum_is_scattered_into_its_zeros(a100):
    leaf = torch.randn(64, 64, device="cuda", requires_grad=True)
    largest = leaf.max(dim=1).values.sum()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    largest.backward()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] - before == 2
    assert leaf.grad is not None
    assert leaf.grad.sum().item() == 64


def test_a_gradient_that_the_program_holds_is_not_written_to(a100):
    leaf = torch.ones(4, device="cuda", requires_grad=True)
    middle = leaf * 1
    held: list[torch.Tensor] = []
    middle.register_hook(lambda gradient: held.append(gradient))
    first, second = middle * 2, middle * 3
    first.register_hook(lambda gradient: held.append(gradient))
    (first + second).sum().backward()
    assert [gradient.tolist() for gradient in held] == [[1.0] * 4, [5.0] * 4]
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [5.0] * 4


def test_an_accumulating_index_put_sorts_its_indices(a100):
    target = torch.zeros(1000, 64, device="cuda")
    values = torch.ones(512, 64, device="cuda")
    indices = torch.zeros(512, dtype=torch.int64, device="cuda")
    plain = peak_beyond_results(lambda: target.index_put_((indices,), values))
    sorting = peak_beyond_results(lambda: target.index_put_((indices,), values, accumulate=True))
    assert plain == 0
    assert sorting == 4 * 512 * 8 + 512  # linear, sorted, their order, a range; the sort's own
    host = indices.cpu()
    assert peak_beyond_results(lambda: target[host]) == 512 * 8


def test_ops_without_an_entry_are_counted(a100):
    tensor = torch.randn(8, 8, device="cuda")
    _ = (tensor @ tensor).relu().sum() + tensor.view(-1)[0].clone()
    assert a100.unmodelled == {}
    torch.linalg.qr(tensor)
    torch.linalg.qr(tensor)
    [(name, found)] = a100.unmodelled.items()
    assert (name, found.calls, found.nbytes) == ("aten.linalg_qr.default", 2, 2 * 2 * 8 * 8 * 4)


def test_every_memory_model_names_an_op_and_its_source():
    for name, _, source in provenances():
        namespace, _, full = name.partition("::")
        packet, _, overload = full.partition(".")
        assert hasattr(getattr(torch.ops, namespace), packet), name
        assert (overload or "default") in getattr(getattr(torch.ops, namespace), packet).overloads()
        assert source.startswith("aten/src/ATen/")


def test_an_in_place_op_without_room_for_its_temporaries_changes_nothing():
    with simulate("96MiB"):
        target = torch.zeros(1000, device="cuda")
        indices = torch.zeros(2**20, dtype=torch.int64, device="cuda")
        values = torch.ones(2**20, device="cuda")
        filling = torch.empty(60 * 2**20, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            target.index_put_((indices,), values, accumulate=True)
        assert target.sum().item() == 0
        del filling
        target.index_put_((indices,), values, accumulate=True)
        assert target[0].item() == 2**20
