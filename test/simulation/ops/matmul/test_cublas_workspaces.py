"""Workspaces of cuBLAS: their size, who shares them, and copies of operands."""

from __future__ import annotations

import threading

import pytest
import torch
from support.op_memory import peak_beyond_results

from pytorch_memlab.simulation import simulate

DEFAULT, LARGE = 8519680, 33554432


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
