"""Ops that a program seldom calls by their names: CUDA's kernels behind other ops.

Each calls the op whose kernel it is, so that its memory is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..machine.simulated_gpu import SimulatedGPU

_aten: Final = torch.ops.aten


def _convolve(
    _gpu: SimulatedGPU,
    tensor: torch.Tensor,
    weight: torch.Tensor,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *_tuning: bool,
) -> torch.Tensor:
    return _convolution(tensor, weight, None, stride, padding, dilation, groups)


def _convolve_transposed(
    _gpu: SimulatedGPU,
    tensor: torch.Tensor,
    weight: torch.Tensor,
    padding: Sequence[int],
    output_padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *_tuning: bool,
) -> torch.Tensor:
    result: torch.Tensor = _aten.convolution.default(
        tensor, weight, None, stride, padding, dilation, True, output_padding, groups
    )
    return result


def _convolve_and_clamp(_gpu: SimulatedGPU, *args: Any) -> torch.Tensor:
    return _aten.relu_.default(_convolution(*args))  # type: ignore[no-any-return]


def _convolve_add_and_clamp(
    _gpu: SimulatedGPU,
    tensor: torch.Tensor,
    weight: torch.Tensor,
    added: torch.Tensor,
    alpha: float | None,
    *options: Any,
) -> torch.Tensor:
    result = _convolution(tensor, weight, *options)
    _aten.add_.Tensor(result, added, alpha=1 if alpha is None else alpha)
    return _aten.relu_.default(result)  # type: ignore[no-any-return]


def _convolution(
    tensor: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    result: torch.Tensor = _aten.convolution.default(
        tensor, weight, bias, stride, padding, dilation, False, [0] * len(padding), groups
    )
    return result


def _gather_statistics(
    gpu: SimulatedGPU,
    tensor: torch.Tensor,
    means: torch.Tensor,
    deviations: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    count: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = tensor.dtype if running_mean is None else running_mean.dtype
    counts = _aten.full.default([means.shape[0]], count, dtype=dtype, device=gpu.device)
    statistics: tuple[torch.Tensor, torch.Tensor] = (
        _aten.batch_norm_gather_stats_with_counts.default(
            tensor, means, deviations, running_mean, running_var, momentum, eps, counts
        )
    )
    return statistics


COMPOUND: Final[Mapping[str, Callable[..., Any] | None]] = {
    "aten::cudnn_convolution": _convolve,
    "aten::cudnn_convolution_transpose": _convolve_transposed,
    "aten::cudnn_convolution_relu": _convolve_and_clamp,
    "aten::cudnn_convolution_add_relu": _convolve_add_and_clamp,
    "aten::batch_norm_gather_stats": _gather_statistics,
}
"""By the op's name; called as the op is, with the simulated GPU of its first tensor before."""
