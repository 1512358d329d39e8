"""Workspaces of cuBLAS: their size, who shares them, and copies of operands."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import torch
from support.op_memory import events, peak_beyond_results, randn

from pytorch_memlab.simulation import simulate
from pytorch_memlab.simulation.machine import cublas_workspaces
from pytorch_memlab.simulation.ops.matmul import cublas, cublaslt

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


@pytest.fixture
def torch_2_15(monkeypatch):
    monkeypatch.setattr(cublas_workspaces, "RELEASE", (2, 15))
    monkeypatch.setattr(cublaslt, "RELEASE", (2, 15))
    monkeypatch.delenv("TORCH_CUBLAS_WORKSPACE_CACHE")


@pytest.mark.parametrize(("gpu", "size"), [("a100", DEFAULT), ("h100", LARGE), ("b200", LARGE)])
def test_from_torch_2_15_on_each_product_has_a_workspace_of_its_own(gpu, size, torch_2_15):
    with simulate(gpu) as machine:
        matrix = torch.ones(64, 64, device="cuda", requires_grad=True)
        for _ in range(2):
            torch.cuda.reset_peak_memory_stats()
            product = matrix.detach() @ matrix.detach()
            assert torch.cuda.memory_allocated() == 2 * 64 * 64 * 4
            assert torch.cuda.max_memory_allocated() == 2 * 64 * 64 * 4 + size
            assert machine.gpus[0].peak_share()[1] == (size if gpu == "b200" else 0)
            assert machine.workspaces.living() == []
            del product
        (matrix @ matrix).sum().backward()
        assert torch.cuda.memory_allocated() == 2 * 64 * 64 * 4


@pytest.mark.parametrize(
    ("cached", "expected"),
    [("0", [4096, DEFAULT, -DEFAULT]), ("1", [4096, DEFAULT]), ("yes", [4096, DEFAULT, -DEFAULT])],
)
def test_the_environment_keeps_workspaces(cached, expected, torch_2_15, monkeypatch):
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", cached)
    assert events(torch.mm, lambda: randn(32, 16), lambda: randn(16, 32)) == expected


def test_whether_workspaces_are_kept_is_read_once(torch_2_15, monkeypatch):
    """A process of PyTorch has read it at its first product."""
    with simulate("a100"):
        matrix = torch.ones(64, 64, device="cuda")
        for cached in ("0", "1"):
            monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", cached)
            _ = matrix @ matrix
            del _
            assert torch.cuda.memory_allocated() == 64 * 64 * 4
    with simulate("a100"):
        matrix = torch.ones(64, 64, device="cuda")
        _ = matrix @ matrix
        del _
        assert torch.cuda.memory_allocated() == 64 * 64 * 4 + DEFAULT


@pytest.mark.parametrize(("release", "size"), [((2, 14), DEFAULT), ((2, 15), LARGE)])
def test_thor_has_the_workspace_of_blackwell_from_torch_2_15_on(release, size, monkeypatch):
    monkeypatch.setattr(cublas_workspaces, "RELEASE", release)
    assert cublas_workspaces.workspace_size(11) == size


def test_a_product_with_a_bias_has_one_of_cublaslt_for_itself(torch_2_15):
    given = [lambda: randn(24), lambda: randn(32, 16), lambda: randn(16, 24)]
    assert events(torch.addmm, *given) == [32 * 24 * 4, 2**20, -(2**20)]


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


def test_matrices_with_gaps_are_read_where_rows_or_columns_are_whole(a100):
    matrix, wide = torch.ones(256, 256, device="cuda"), torch.ones(512, 512, device="cuda")
    _ = matrix @ matrix
    rows, apart, same = wide[:256, :256], wide[::2, ::2], matrix[0].expand(256, 256)
    taken = [
        [peak_beyond_results(partial(torch.mm, operand, matrix)) for operand in operands]
        for operands in ((rows, rows.t()), (apart, apart.t(), same, same.t()))
    ]
    assert taken == [[0, 0], [256 * 256 * 4] * 4]


@pytest.mark.parametrize(
    ("release", "is_disabled", "takes"),
    [((2, 12), False, True), ((2, 13), False, False), ((2, 13), True, True)],
)
def test_products_of_columns_and_rows_run_on_triton(release, is_disabled, takes, monkeypatch):
    monkeypatch.setattr(cublas, "RELEASE", release)
    monkeypatch.setenv("TORCH_DISABLE_NATIVE_JIT", str(int(is_disabled)))
    column, row = (lambda: randn(8, 1, 16).mT), (lambda: randn(8, 1, 16))
    made, workspace = 8 * 16 * 16 * 4, [DEFAULT] if takes else []
    assert events(torch.bmm, column, row) == [made, *workspace]
    assert events(torch.matmul, column, row, compute=False) == [made, *workspace]
    apart = [lambda: randn(8, 1, 32)[..., ::2].mT, row]
    copied = [made // 16, DEFAULT, -made // 16] if takes else []
    assert events(torch.bmm, *apart) == [made, *copied]


def test_other_products_of_columns_and_rows_run_on_cublas(monkeypatch):
    monkeypatch.setattr(cublas, "RELEASE", (2, 13))
    column, row = (lambda: randn(8, 1, 16).mT), (lambda: randn(8, 1, 16))
    made = 8 * 16 * 16 * 4
    added = [lambda: randn(8, 16, 16), column, row]
    assert events(torch.baddbmm, *added) == [made, DEFAULT]
    complex_ones = [lambda one=one: one().to(torch.complex64) for one in (column, row)]
    assert events(torch.bmm, *complex_ones) == [2 * made, DEFAULT]
    given = [column, row, lambda: randn(8, 16, 16)]
    assert events(lambda a, b, out: torch.bmm(a, b, out=out), *given) == [DEFAULT]
