"""Ops without a kernel for CUDA (``native_functions.yaml``): a GPU refuses them."""

from __future__ import annotations

from functools import partial
from typing import Any

from .core.registry import define


def _refuse(name: str, *_args: Any, **_kwargs: Any) -> Any:
    raise NotImplementedError(
        f"Could not run '{name}' with arguments from the 'CUDA' backend: PyTorch has it for the "
        "CPU only; move its tensors there with .cpu()"
    )


for _name in (
    "histogram.bin_ct",
    "histogram.bin_ct_out",
    "histogram.bins_tensor",
    "histogram.bins_tensor_out",
    "_histogramdd_bin_edges",
    "_histogramdd_from_bin_cts",
    "_histogramdd_from_bin_tensors",
    "_sparse_mm_reduce_impl",
    "_spdiags",
    "to_mkldnn",
):
    define(f"aten::{_name}", composite=partial(_refuse, f"aten::{_name}"))
