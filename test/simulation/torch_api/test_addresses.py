"""``data_ptr()`` gives the addresses of the simulated allocator, those of its snapshots."""

import ctypes
import gc
import io
from collections.abc import Callable
from typing import Any

import pytest
import safetensors.torch
import torch

from pytorch_memlab import simulate

MiB = 1024**2


def blocks_in_use() -> dict[int, int]:
    """Addresses of the blocks that a program finds in a snapshot, and what it asked for there."""
    return {
        block["address"]: block["requested_size"]
        for segment in torch.cuda.memory._snapshot()["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


def live_storages() -> dict[int, int]:
    """Addresses of all GPU tensors that the garbage collector shows, and their storages' bytes."""
    tensors = [one for one in gc.get_objects() if isinstance(one, torch.Tensor) and one.is_cuda]
    tensors += [one.grad for one in tensors if one.is_leaf and one.grad is not None]
    storages = [tensor.untyped_storage() for tensor in tensors]
    return {one.data_ptr(): one.nbytes() for one in storages if one.nbytes()}


@pytest.mark.parametrize("compute", [True, False], ids=["values", "dry run"])
@pytest.mark.parametrize("expandable", [False, True], ids=["segments", "expandable segments"])
def test_a_program_finds_every_live_tensor_in_a_snapshot(
    compute: bool, expandable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if expandable:
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    with simulate("t4", compute=compute):
        model = torch.nn.Sequential(
            torch.nn.Linear(300, 700), torch.nn.LayerNorm(700), torch.nn.Linear(700, 5)
        ).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        embedding = torch.randn(5 * MiB, device="cuda")
        for _ in range(2):
            batch = torch.randn(64, 300, device="cuda")
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
        found = blocks_in_use()
        torch._C._cuda_clearCublasWorkspaces()
        workspaces = found.keys() - blocks_in_use().keys()
        assert live_storages() == {key: found[key] for key in found.keys() - workspaces}
        assert embedding.data_ptr() in found


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("compute", [True, False], ids=["values", "dry run"])
def test_views_begin_inside_of_their_block(compute: bool) -> None:
    with simulate("t4", compute=compute):
        matrix = torch.empty(100, 50, dtype=torch.float16, device="cuda")
        start = matrix.data_ptr()
        assert start % 512 == 0
        assert matrix[3:].data_ptr() == start + 3 * 50 * 2
        assert matrix[2:, 7].data_ptr() == start + (2 * 50 + 7) * 2
        assert matrix[2:, 7].untyped_storage().data_ptr() == start
        assert matrix.detach().view(torch.int8)[1].data_ptr() == start + 100
        assert matrix[4:4].data_ptr() == 0
        assert torch._C._data_address(matrix[3:]) == start + 300
        assert matrix.__cuda_array_interface__["data"] == (start, False)
        second = torch.empty(1, device="cuda")
        assert second.data_ptr() == start + 10_240
        assert torch.empty(0, device="cuda").data_ptr() == 0
        assert torch.empty(0, device="cuda").untyped_storage().data_ptr() == 0
        assert matrix.storage().data_ptr() == start
        del matrix
        assert second.data_ptr() == start + 10_240


def test_a_storage_that_is_resized_moves() -> None:
    with simulate("t4"):
        tensor = torch.empty(10, device="cuda")
        first = tensor.data_ptr()
        tensor.untyped_storage().resize_(2 * MiB)
        assert tensor.data_ptr() != first
        assert blocks_in_use() == {tensor.data_ptr(): 2 * MiB}
        tensor.untyped_storage().resize_(0)
        assert tensor.untyped_storage().data_ptr() == 0


def test_each_gpu_has_addresses_of_its_own() -> None:
    with simulate("t4", count=2):
        first, second = (torch.empty(9, device=f"cuda:{index}") for index in range(2))
        assert blocks_in_use() == {first.data_ptr(): 36, second.data_ptr(): 36}


def test_a_shared_tensor_has_one_address() -> None:
    with simulate("t4"):
        tensor = torch.arange(20, device="cuda")[5:]
        assert torch.from_dlpack(tensor).data_ptr() == tensor.data_ptr()
        capsule = torch.utils.dlpack.to_dlpack(tensor)
        assert torch.utils.dlpack.from_dlpack(capsule).data_ptr() == tensor.data_ptr()
        assert torch.as_tensor(tensor).data_ptr() == tensor.data_ptr()


def test_an_address_leads_to_a_stack_and_can_be_freed() -> None:
    with simulate("t4"):
        torch.cuda.memory._record_memory_history()
        taken = torch.cuda.caching_allocator_alloc(1000)
        assert blocks_in_use() == {taken: 1000}
        torch.cuda.caching_allocator_delete(taken)
        assert blocks_in_use() == {}
        empty = torch.empty(0, device="cuda")
        torch._C._cuda_annotateMemory(empty.data_ptr(), "nothing is there")
        (trace,) = torch.cuda.memory._snapshot()["device_traces"]
        assert "annotate" not in {entry["action"] for entry in trace}


def test_values_on_the_cpu_are_where_their_address_says() -> None:
    with simulate("t4"):
        for tensor in (torch.ones(4), torch.ones(4).pin_memory(), torch.ones(4, device="cuda")):
            host = tensor.cpu()
            memory = (ctypes.c_float * 4).from_address(host.data_ptr())
            memory[2] = 7
            assert host.tolist() == [1, 1, 7, 1]
            assert host.numpy().ctypes.data == host.untyped_storage().data_ptr()


def through_a_file(tensor: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    loaded: torch.Tensor = torch.load(file)
    return loaded


def through_safetensors(tensor: torch.Tensor) -> torch.Tensor:
    saved = safetensors.torch.save({"tensor": tensor})
    return safetensors.torch.load(saved)["tensor"].cuda()


@pytest.mark.parametrize("way", [through_a_file, through_safetensors])
def test_values_are_saved_though_their_address_is_on_the_gpu(
    way: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    with simulate("t4"):
        tensor = torch.arange(6.0, device="cuda")
        again = way(tensor)
        assert again.data_ptr() in blocks_in_use()
        assert again.data_ptr() != tensor.data_ptr()
        assert again.tolist() == tensor.tolist()


def test_addresses_are_those_of_the_process_after_the_simulation() -> None:
    with simulate("t4"):
        tensor = torch.ones(3, device="cuda")
        assert tensor.data_ptr() in blocks_in_use()
    memory = (ctypes.c_float * 3).from_address(tensor.data_ptr())
    assert list(memory) == [1, 1, 1]


def test_sparse_tensors_have_addresses_of_their_parts_only() -> None:
    with simulate("t4"):
        sparse = torch.eye(3, device="cuda").to_sparse()
        with pytest.raises(RuntimeError, match="doesn't have storage"):
            sparse.data_ptr()
        assert {sparse.indices().data_ptr(), sparse.values().data_ptr()} <= blocks_in_use().keys()


def make_cycle() -> None:
    kept = torch.empty(3, 4, device="cuda")

    def refer(depth: int) -> Any:
        return refer(depth - 1) if depth else kept

    refer(0)


def test_pytorch_names_the_stack_of_a_tensor_in_a_cycle() -> None:
    from torch.utils.viz._cycles import observe_tensor_cycles

    pages: list[str] = []
    with simulate("t4"):
        gc.collect()
        stop = observe_tensor_cycles(pages.append)
        try:
            make_cycle()
            gc.collect()
        finally:
            stop()
    (page,) = pages
    for word in ("torch.Tensor", "cell_contents", "test_addresses.py", "make_cycle"):
        assert word in page
