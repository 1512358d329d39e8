"""Quantiles of tensors of simulated GPUs: values, and tensors of other devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pytorch_memlab import simulate

QUANTILES = (torch.quantile, torch.nanquantile)


@pytest.fixture(params=[True, False], ids=["computed", "dry"], autouse=True)
def has_values(request: Any) -> Iterator[bool]:
    with simulate("t4", count=2, compute=request.param):
        yield bool(request.param)


@pytest.mark.parametrize("quantile", QUANTILES)
@pytest.mark.parametrize("other", ["cpu", "cuda:1"])
def test_the_points_and_the_output_are_on_the_device_of_the_input(
    quantile: Any, other: str
) -> None:
    tensor = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError) as q_error:
        quantile(tensor, torch.tensor(0.5, device=other))
    assert str(q_error.value) == (
        "quantile() q tensor must be on the same device as the input tensor"
    )
    for q in (0.5, torch.tensor(0.5, device="cuda")):
        with pytest.raises(RuntimeError) as out_error:
            quantile(tensor, q, out=torch.empty((), device=other))
        assert str(out_error.value) == (
            "quantile() out tensor must be on the same device as the input tensor"
        )


def test_dtypes_are_compared_before_devices() -> None:
    tensor = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="q tensor must be same dtype as the input tensor"):
        tensor.quantile(torch.tensor(0.5, dtype=torch.float64))


@pytest.mark.parametrize("quantile", QUANTILES)
def test_tensors_of_one_gpu_have_a_quantile_and_a_gradient(quantile: Any, has_values: bool) -> None:
    tensor = torch.arange(5.0, device="cuda:1", requires_grad=True)
    quantile(tensor, torch.tensor([0.5, 1.0], device="cuda:1"), dim=0).sum().backward()
    assert tensor.grad is not None
    assert tensor.grad.device == torch.device("cuda:1")
    with torch.no_grad():
        out = torch.empty(2, device="cuda:1")
        quantile(tensor, torch.tensor([0.5, 1.0], device="cuda:1"), out=out)
    assert out.shape == (2,)
    if has_values:
        assert (out.tolist(), tensor.grad.tolist()) == ([2.0, 4.0], [0.0, 0.0, 1.0, 0.0, 1.0])
