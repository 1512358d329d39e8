"""cuDNN: copies that its callers make, known workspaces, and convolutions by the names of cuDNN.

Every plan of cuDNN has its own workspace, whose size only cuDNN tells. Where nothing is known
of it no bytes are counted, and the op is named among those that take memory of unknown size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from ...hardware.gpu import GPU
from ...machine.simulated_gpu import SimulatedGPU
from ..op_call import OpCall
from ..registry import define
from .backends import Convolution

CUDNN_WORKSPACES: Final = "cuDNN workspaces"


def alloc_copy_into(call: OpCall, tensor: torch.Tensor, layout: torch.memory_format) -> None:
    """Allocate a copy in another format until the op ends, if the tensor does not have it."""
    if not tensor.is_contiguous(memory_format=layout):
        call.alloc_copy(tensor)


# Note [Winograd workspace]
# A recording of a small convolutional network (PyTorch 2.2, cuDNN 8, a GPU of compute capability
# 7.5) shows the workspaces of three convolutions and of their three gradients of the input. The
# formula gives all six: filter tiles of Winograd's F(2x2, 3x3), a copy of the filter, and a
# vector. That cuDNN takes the same engine elsewhere is an assumption: an estimate.

_FIRST_WITH_TF32: Final = 8
"""Major compute capability from which cuDNN may round float32, and takes other engines."""

_FLOAT: Final = 4
_TAPS: Final = 9
_TILE: Final = 16
"""Elements of a filter of 3 by 3 once it is transformed."""


def winograd_workspace(convolution: Convolution, gpu: GPU, *, gradient: bool) -> int | None:
    """Bytes of the workspace, None where nothing is known of it. See Note [Winograd workspace]."""
    if not _is_recorded(convolution, gpu):
        return None
    made, read = convolution.weight.shape[:2]
    if gradient:
        made, read = read, made
    tiles = _TILE * _up(read, 4) * _up(made, 32)
    return _FLOAT * (tiles + _TAPS * read * made + made)


def _is_recorded(convolution: Convolution, gpu: GPU) -> bool:
    tensor, weight = convolution.tensor, convolution.weight
    return (
        gpu.major < _FIRST_WITH_TF32
        and not torch.backends.cudnn.benchmark
        and not torch.backends.cudnn.deterministic
        and not torch.are_deterministic_algorithms_enabled()
        and tensor.dtype == weight.dtype == torch.float32
        and weight.shape[2:] == (3, 3)
        and tensor.shape[0] == 1
        and convolution.layout == torch.contiguous_format
        and not convolution.transposed
        and convolution.groups == 1
        and set(convolution.stride) == set(convolution.dilation) == {1}
    )


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


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
) -> Any:
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
) -> Any:
    options = (stride, padding, dilation, True, output_padding, groups)
    return _aten.convolution.default(tensor, weight, None, *options)


def _convolve_and_clamp(_gpu: SimulatedGPU, *args: Any) -> Any:
    return _aten.relu_.default(_convolution(*args))


def _convolve_add_and_clamp(
    _gpu: SimulatedGPU,
    tensor: torch.Tensor,
    weight: torch.Tensor,
    added: torch.Tensor,
    alpha: float | None,
    *options: Any,
) -> Any:
    result = _convolution(tensor, weight, *options)
    _aten.add_.Tensor(result, added, alpha=1 if alpha is None else alpha)
    return _aten.relu_.default(result)


def _convolution(*args: Any) -> Any:
    *others, groups = args
    return _aten.convolution.default(*others, False, [0] * len(others[4]), groups)


define("aten::cudnn_convolution", composite=_convolve)
define("aten::cudnn_convolution_transpose", composite=_convolve_transposed)
define("aten::cudnn_convolution_relu", composite=_convolve_and_clamp)
define("aten::cudnn_convolution_add_relu", composite=_convolve_add_and_clamp)
