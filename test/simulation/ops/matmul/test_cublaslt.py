"""cuBLASLt's workspace, which depends on PyTorch's release and on the environment."""

from __future__ import annotations

import pytest
import torch
from support.op_memory import events, randn
from torch import nn

from pytorch_memlab.simulation import simulate
from pytorch_memlab.simulation.ops.matmul import cublaslt

KIB, MIB = 2**10, 2**20
CUBLAS = 8_519_680
RESULT = 4 * 32 * 24
UNIFIED = "TORCH_CUBLASLT_UNIFIED_WORKSPACE"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in (UNIFIED, "CUBLASLT_WORKSPACE_SIZE", "DISABLE_ADDMM_CUDA_LT"):
        monkeypatch.delenv(name, raising=False)


def add(*sizes, dtype=torch.float32, op=torch.addmm, **options):
    """The requests and frees of a product with a bias, its result first."""
    bias, first, second = sizes or ((24,), (32, 16), (16, 24))
    return events(
        lambda bias, first, second: op(bias, first, second, **options),
        lambda: randn(*bias, dtype=dtype),
        lambda: randn(*first, dtype=dtype),
        lambda: randn(*second, dtype=dtype),
        compute=False,
    )


PASSING = [RESULT, MIB, CUBLAS, -MIB]
KEPT = [RESULT, CUBLAS, MIB]
SHARED = [RESULT, CUBLAS]

EXPECTED = {
    ((2, 6), None): PASSING,
    ((2, 7), None): PASSING,
    ((2, 7), "1"): PASSING,  # it was not read then
    ((2, 8), None): PASSING,
    ((2, 8), "0"): PASSING,
    ((2, 8), "1"): SHARED,
    ((2, 9), None): KEPT,
    ((2, 11), None): KEPT,
    ((2, 11), "1"): SHARED,
    ((2, 12), None): SHARED,
    ((2, 12), "1"): SHARED,
    ((2, 12), "0"): KEPT,
    ((2, 12), "yes"): SHARED,
    ((2, 13), None): SHARED,
    ((2, 13), "0"): [RESULT, MIB],
    ((3, 0), None): SHARED,
}


@pytest.mark.parametrize(("release", "unified"), EXPECTED)
def test_the_release_and_the_environment_decide_whose_it_is(monkeypatch, release, unified):
    monkeypatch.setattr(cublaslt, "RELEASE", release)
    if unified is not None:
        monkeypatch.setenv(UNIFIED, unified)
    assert add() == EXPECTED[release, unified]


@pytest.mark.parametrize(
    ("size", "expected"),
    [("2048", 2 * MIB), (" 64 KiB", 64 * KIB), ("0", 0), ("lots", MIB), ("", MIB)],
)
def test_its_size_is_a_setting(monkeypatch, size, expected):
    monkeypatch.setattr(cublaslt, "RELEASE", (2, 6))
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", size)
    own = [expected] if expected else []
    assert add() == [RESULT, *own, CUBLAS, *(-one for one in own)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_that_it_multiplies(monkeypatch, dtype):
    monkeypatch.setattr(cublaslt, "RELEASE", (2, 6))
    assert MIB in add(dtype=dtype)


@pytest.mark.parametrize(
    ("release", "sizes", "options", "takes"),
    [
        ((2, 6), [(24,), (32, 16), (16, 24)], {"alpha": 2}, True),
        ((2, 6), [(24,), (32, 16), (16, 24)], {"beta": 2}, False),
        ((2, 6), [(32, 24), (32, 16), (16, 24)], {}, False),
        ((2, 6), [(1, 24), (32, 16), (16, 24)], {}, False),
        ((2, 6), [(1,), (32, 16), (16, 24)], {}, False),
        ((2, 6), [(1,), (32, 16), (16, 1)], {}, False),
        ((2, 6), [(24,), (32, 1), (1, 24)], {}, False),
        ((2, 6), [(24,), (1, 16), (16, 24)], {}, True),
        ((2, 10), [(24,), (1, 16), (16, 24)], {}, False),
        ((2, 10), [(24,), (2, 16), (16, 24)], {}, True),
    ],
)
def test_where_cublas_adds_the_bias_in_its_place(monkeypatch, release, sizes, options, takes):
    monkeypatch.setattr(cublaslt, "RELEASE", release)
    assert (MIB in add(*sizes, **options)) == takes


def test_complex_products_and_those_in_place_are_cublass(monkeypatch):
    monkeypatch.setattr(cublaslt, "RELEASE", (2, 6))
    assert MIB not in add(dtype=torch.complex64)
    assert MIB not in add((32, 24), (32, 16), (16, 24), op=torch.Tensor.addmm_)


def test_it_can_be_disabled(monkeypatch):
    monkeypatch.setattr(cublaslt, "RELEASE", (2, 6))
    monkeypatch.setenv("DISABLE_ADDMM_CUDA_LT", "1")
    assert add() == SHARED


def test_a_kept_one_is_made_once_for_each_thread_and_given_back_with_the_others(monkeypatch):
    monkeypatch.setattr(cublaslt, "RELEASE", (2, 9))
    with simulate("a100", compute=False) as machine:
        layer = nn.Linear(16, 24).cuda()
        tensor = torch.zeros(32, 16, device="cuda")
        before = torch.cuda.memory_allocated()
        with torch.no_grad():
            for _ in range(3):
                layer(tensor)
        assert torch.cuda.memory_allocated() == before + CUBLAS + MIB
        assert machine.approximations[0].estimated["aten.addmm.default"].nbytes == MIB
        torch._C._cuda_clearCublasWorkspaces()
        assert torch.cuda.memory_allocated() == before


def test_a_passing_one_sets_the_peak_and_is_an_estimate(monkeypatch):
    monkeypatch.setattr(cublaslt, "RELEASE", (2, 6))
    with simulate("a100", compute=False) as machine:
        layer = nn.Linear(16, 24).cuda()
        tensor = torch.zeros(32, 16, device="cuda")
        for _ in range(2):
            layer(tensor)
        assert machine.gpus[0].peak_share() == (torch.cuda.max_memory_allocated(), MIB)
        count = machine.approximations[0].estimated["aten.addmm.default"]
        assert (count.calls, count.nbytes) == (2, 2 * MIB)
