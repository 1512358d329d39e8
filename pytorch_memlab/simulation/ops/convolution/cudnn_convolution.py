"""The convolutions of cuDNN by their own names: each calls the op whose kernel it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from ..registry import define

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...machine.simulated_gpu import SimulatedGPU

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
    return _aten.convolution.default(  # type: ignore[no-any-return]
        tensor, weight, None, stride, padding, dilation, True, output_padding, groups
    )


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


define("aten::cudnn_convolution", composite=_convolve)
define("aten::cudnn_convolution_transpose", composite=_convolve_transposed)
define("aten::cudnn_convolution_relu", composite=_convolve_and_clamp)
define("aten::cudnn_convolution_add_relu", composite=_convolve_add_and_clamp)
