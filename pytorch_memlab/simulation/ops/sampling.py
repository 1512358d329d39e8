"""Sampling and dropout: numbers drawn first, copies of distributions, the sort of ``randperm``.

Dropout is one fused kernel on CUDA, which keeps a mask of one byte for each element. Feature and
alpha dropout, dropout in place and that with a probability of 0 or 1 run the same ops on CUDA as
on a CPU (``aten/src/ATen/native/Dropout.cpp``).
"""

from __future__ import annotations

from math import ceil, log, log2
from typing import Any, Final

import torch

from ..machine.simulated_gpu import SimulatedGPU
from .core import cub
from .core.low_precision import in_single_precision
from .core.memory_formats import contiguous_like
from .core.op_call import INDEX, OpCall
from .core.reduction_workspace import (
    VALUE_AND_INDEX,
    Kernel,
    alloc_column_sums_workspace,
    alloc_reduction_workspace,
    alloc_sum_workspace,
)
from .core.registry import define, estimated, op
from .reductions.reductions import scan_row
from .sorting.sorting import alloc_topk

_DISTRIBUTIONS: Final = "aten/src/ATen/native/Distributions.cpp, cuda/MultinomialKernel.cu"
_PERMUTATION: Final = "aten/src/ATen/native/cuda/Randperm.cu"
_DUPLICATES: Final = 0.9
"""Least probability that ``randperm`` asks of its keys to be all distinct."""


@estimated("aten::multinomial", source=_DISTRIBUTIONS)
def _multinomial(call: OpCall) -> None:
    """The largest of random quotients, or with replacement a search in sums."""
    # The rules are those of ``aten/src/ATen/native/Distributions.cpp``.
    call.alloc_outputs()
    source: torch.Tensor = call.args[0]
    samples: int = call.args[1]
    if not call.result.numel():
        return
    if samples == 1 or not call.argument("replacement"):
        _check(call, source)
        _race(call, source, samples)
        return
    for _distribution_normalized_and_sums in range(3):
        call.alloc_copy(source)
    if source.dim() == 1 or source.shape[0] == 1:
        scan_row(call, source.numel(), source.dtype)


def _check(call: OpCall, source: torch.Tensor) -> None:
    """The extremes of a distribution, and what is true of them and of its sums."""
    call.alloc_temps([source.element_size()] * 2)  # smallest and largest
    width = source.element_size()
    extremes = Kernel(2 * width, fits_result=False)
    alloc_reduction_workspace(call, source, None, extremes, (width, width))
    comparisons = [call.alloc_temp(1) for _ in range(2)]
    call.alloc_temp(1)
    for comparison in reversed(comparisons):
        call.free_temp(comparison)
    rows = 1 if source.dim() == 1 else source.shape[0]
    sums = call.alloc_temp(rows * source.element_size())
    alloc_sum_workspace(call, source, None if source.dim() == 1 else 1)
    zeros = call.alloc_temp(rows)
    if source.dim() > 1:
        call.alloc_temp(1)
        alloc_column_sums_workspace(call, rows, 1, torch.bool)
        call.free_temp(zeros)
    call.free_temp(sums)
    call.alloc_and_free(1)


def _race(call: OpCall, source: torch.Tensor, samples: int) -> None:
    """The quotients, and what finds the largest of them."""
    call.alloc_copy(source)
    if samples == 1:
        kernel = Kernel(VALUE_AND_INDEX, fits_result=False)
        widths = (source.element_size(), INDEX)
        alloc_reduction_workspace(call, source, source.dim() - 1, kernel, widths)
        return
    call.alloc_temp(call.result.numel() * source.element_size())
    alloc_topk(call, source, source.dim() - 1, samples)


@estimated("aten::randperm", "aten::randperm.generator", source=_PERMUTATION)
def _randperm(call: OpCall) -> None:
    """Numbers in order, and random keys that they are sorted by."""
    call.alloc_outputs()
    count: int = call.args[0]
    width = call.result.element_size()
    if not count:
        return
    call.alloc_temp(count * width)
    # ``randperm_out_cuda`` in ``Randperm.cu``; its Note [Algorithm of randperm] derives this.
    bits = min(64, ceil(log2(count - (6 * count**2 + 1) / (12 * log(_DUPLICATES)))))
    key = 4 if bits <= 32 else 8
    call.alloc_temps([count * key] * 2)  # keys and sorted keys
    call.alloc_temp(cub.radix_sort(call.model, count, key, width, bits=bits))


_contiguous_meta: Final = contiguous_like(0)
"""PyTorch has no meta kernel of these."""

define("aten::_standard_gamma", "aten::_dirichlet_grad", meta=_contiguous_meta)


@op(
    "aten::_sample_dirichlet",
    source="aten/src/ATen/native/cuda/Distributions.cpp",
    meta=_contiguous_meta,
)
def _dirichlet(call: OpCall) -> None:
    """The sums that samples are divided by."""
    call.alloc_outputs()
    samples: torch.Tensor = call.result
    if samples.numel():
        call.alloc_temp(samples.numel() // samples.shape[-1] * samples.element_size())
        alloc_sum_workspace(call, samples, -1)


@op(
    "aten::rrelu_with_noise",
    source="aten/src/ATen/native/cuda/RreluWithNoise.cu",
    reference=in_single_precision(torch.ops.aten.rrelu_with_noise.default),
)
def _rrelu(call: OpCall) -> None:
    """Contiguous inputs."""
    call.alloc_outputs()
    if call.argument("training"):
        call.alloc_contiguous(*call.args[:2])


define(
    "aten::rrelu_with_noise_",
    reference=in_single_precision(torch.ops.aten.rrelu_with_noise_.default),
)


def _dropout(gpu: SimulatedGPU, tensor: torch.Tensor, p: float, train: bool) -> Any:
    if not train or not 0 < p < 1 or not tensor.numel():
        return NotImplemented
    return torch.ops.aten.native_dropout.default(tensor, p, train)[0]


define("aten::dropout", cuda_dispatch=_dropout)


@op("aten::native_dropout", source="aten/src/ATen/native/cuda/Dropout.cu")
def _mask_first(call: OpCall) -> None:
    output, mask = call.result
    call.alloc_outputs(mask, output)
