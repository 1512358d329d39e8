"""Workspaces that products of compiled code take: those of the library that Inductor chose."""

from __future__ import annotations

import pytest
import torch
from support.op_memory import events, randn

from pytorch_memlab.simulation.machine import cublas_workspaces
from pytorch_memlab.simulation.machine.torch_release import RELEASE
from pytorch_memlab.simulation.ops.matmul import cublaslt

pytestmark = [
    pytest.mark.skipif(RELEASE < (2, 9), reason="compiled from torch 2.9 on"),
    pytest.mark.filterwarnings("error:torch.compile runs eagerly"),
]

OUTPUT = 32 * 32 * 4
CUBLAS, CUBLASLT = 8519680, 2**20


@pytest.mark.parametrize(
    ("is_compiled", "has_relu", "workspace"),
    [(False, True, CUBLASLT), (True, True, CUBLAS), (True, False, CUBLASLT)],
)
def test_a_bias_that_inductor_adds_in_a_kernel_of_its_own_leaves_cublaslt_out(
    is_compiled: bool, has_relu: bool, workspace: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cublas_workspaces, "RELEASE", (2, 15))
    monkeypatch.setattr(cublaslt, "RELEASE", (2, 15))
    monkeypatch.delenv("TORCH_CUBLAS_WORKSPACE_CACHE", raising=False)

    def layer(bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        product = torch.addmm(bias, x, weight)
        return product.relu() if has_relu else product

    torch.compiler.reset()
    step = torch.compile(layer) if is_compiled else layer
    given = [lambda: randn(32), lambda: randn(32, 32), lambda: randn(32, 32)]
    taken = events(step, *given, gpu="a100", compute=False)
    assert taken[:3] == [OUTPUT, workspace, -workspace]
    assert workspace not in taken[3:]
