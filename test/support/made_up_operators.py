"""Operators with samples, as PyTorch's ``OpInfo``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch


class Operator:
    """An ``OpInfo`` of one sample."""

    variant_test_name = ""
    supports_autograd = True

    def __init__(self, function: Any, name: str = "own") -> None:
        self.function = function
        self.name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def supported_dtypes(self, device: str) -> set[torch.dtype]:
        return {torch.float32, torch.int32}

    supported_backward_dtypes = supported_dtypes

    def sample_inputs(self, device: str, dtype: torch.dtype, requires_grad: bool) -> Any:
        x = torch.arange(1.0, 5.0, device=device, dtype=dtype)
        x.requires_grad_(requires_grad and dtype.is_floating_point)
        given = {"input": x, "args": (), "kwargs": {}}
        yield SimpleNamespace(**given, output_process_fn_grad=lambda result: result)
