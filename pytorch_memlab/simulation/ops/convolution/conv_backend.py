"""Kernels that convolve on CUDA: ``_select_conv_backend`` of ``native/Convolution.cpp``.

Convolutions by the names of cuDNN are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import torch

from ...machine import active
from ...machine.simulated_gpu import SimulatedGPU
from ..core.memory_formats import MAX_INT32, cudnn_conv_memory_format
from ..core.registry import define

_BFLOAT16_CAPABILITY: Final = 8
_VOLUME: Final = 5
"""Dimensions of a batch of volumes."""

_aten: Final = torch.ops.aten


class ConvolutionBackend(Enum):
    """Who convolves."""

    # ``CUDNN``: cuDNN, transposed convolutions too. ``DEPTHWISE``: PyTorch's own kernels for groups
    # of one channel. ``COLUMNS``: a matrix of unfolded patches and cuBLAS, one sample after
    # another. ``EMPTY``: there is nothing to convolve.

    CUDNN = "cuDNN"
    DEPTHWISE = "depthwise"
    COLUMNS = "columns"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class Convolution:
    """The parameters of a convolution, with one spatial dimension made two."""

    tensor: torch.Tensor  # its input
    weight: torch.Tensor  # of as many dimensions
    stride: tuple[int, ...]  # of each spatial dimension
    padding: tuple[int, ...]  # of each spatial dimension
    dilation: tuple[int, ...]  # of each spatial dimension
    transposed: bool  # whether it is a transposed one
    output_padding: tuple[int, ...]  # of each spatial dimension
    groups: int  # of channels

    @property
    def layout(self) -> torch.memory_format:
        """The format in which the backend reads and writes."""
        if self.backend() is ConvolutionBackend.CUDNN:
            return cudnn_conv_memory_format(self.tensor, self.weight)
        return torch.contiguous_format

    def backend(self) -> ConvolutionBackend:
        tensor = self.tensor
        if not tensor.shape[0] or not tensor.shape[1]:
            return ConvolutionBackend.EMPTY
        if self._is_depthwise():
            return (
                ConvolutionBackend.CUDNN
                if self._is_depthwise_of_cudnn()
                else ConvolutionBackend.DEPTHWISE
            )
        return ConvolutionBackend.CUDNN if self._is_for_cudnn() else ConvolutionBackend.COLUMNS

    @property
    def backend_in_pytorch(self) -> Any:
        """The backend as a value of PyTorch's enumeration."""
        backends: Any = vars(torch._C)["_ConvBackend"]
        is_volume = self.tensor.dim() == _VOLUME
        match self.backend():
            case ConvolutionBackend.EMPTY:
                return backends.Empty
            case ConvolutionBackend.CUDNN:
                return backends.CudnnTranspose if self.transposed else backends.Cudnn
            case ConvolutionBackend.DEPTHWISE:
                return backends.CudaDepthwise3d if is_volume else backends.CudaDepthwise2d
        if self.transposed:
            return backends.SlowTranspose3d if is_volume else backends.SlowTranspose2d
        if is_volume:
            return backends.SlowDilated3d
        is_dilated = any(step != 1 for step in self.dilation)
        return backends.SlowDilated2d if is_dilated else backends.Slow2d

    def needs_columns(self) -> bool:
        """True if patches have to be unfolded: each is more than one element, or not its own."""
        ones = (*self.weight.shape[2:], *self.stride, *self.dilation)
        return any(number != 1 for number in ones) or any(self.padding) or self.transposed

    def _is_for_cudnn(self) -> bool:
        if not torch._C._get_cudnn_enabled():
            return False
        dtypes = (self.tensor.dtype, self.weight.dtype)
        major = active.machine.gpus[0].model.major if active.machine else _BFLOAT16_CAPABILITY
        if torch.bfloat16 in dtypes and major < _BFLOAT16_CAPABILITY:
            return False
        if (
            any(step != 1 for step in self.dilation)
            and (torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled())
            and cudnn_conv_memory_format(self.tensor, self.weight) == torch.contiguous_format
        ):
            return False
        return all(more < step for more, step in zip(self.output_padding, self.stride, strict=True))

    def _is_depthwise(self) -> bool:
        channels = self.tensor.shape[1]
        return (
            not self.transposed
            and channels == self.groups > 1
            and self.weight.shape[0] % channels == 0
        )

    def _is_depthwise_of_cudnn(self) -> bool:
        """True if cuDNN is the faster one, by PyTorch's table for half precision."""
        tensor, weight = self.tensor, self.weight
        if not torch._C._get_cudnn_enabled():
            return False
        if max(tensor.numel(), weight.numel()) > MAX_INT32:
            return cudnn_conv_memory_format(tensor, weight) == torch.contiguous_format
        if cudnn_conv_memory_format(tensor, weight) != torch.contiguous_format:
            return True
        if tensor.dim() != 4 or not tensor.dtype == weight.dtype == torch.float16:
            return False
        if not self._is_for_cudnn() or any(step != 1 for step in self.dilation):
            return False
        if self.stride[0] != self.stride[1] and tensor.shape[2] != 1:
            return False
        return tensor.shape[1] >= 32 and _is_fast(tuple(tensor.shape), weight.shape, self.stride[1])


def _is_fast(size: Sequence[int], weight: Sequence[int], stride: int) -> bool:
    """The table of ``check_cudnn_depthwise_workload_with_filter``."""
    batch, channels, height, width = size
    taps = weight[3]
    if height == 1 and stride == 1:
        return True
    if weight[2] != taps or taps not in (1, 3, 5) or width < 7 or stride not in (1, 2):
        return False
    if stride == 1:
        return True
    if batch == 1:
        return taps > 1 or width <= 28
    if taps == 1:
        return batch <= 16 and channels >= 128 and width <= 7
    return channels >= 512 or (channels >= 256 and width >= 28)


def convolution_of(
    tensor: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Convolution:
    spatial = weight.dim() - 2
    options = [
        tuple(option) * spatial if len(option) == 1 else tuple(option)
        for option in (stride, padding, dilation, output_padding)
    ]
    if spatial == 1:
        if not tensor.is_contiguous():  # its elements are not needed
            tensor = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        tensor = tensor.unsqueeze(2)
        weight = weight.unsqueeze(2)
        options = [(first, *option) for first, option in zip((1, 0, 1, 0), options, strict=True)]
    stride, padding, dilation, output_padding = options
    return Convolution(
        tensor, weight, stride, padding, dilation, transposed, output_padding, groups
    )


def _convolution(*args: Any) -> Any:
    *others, groups = args
    return _aten.convolution.default(*others, False, [0] * len(others[4]), groups)


def _convolve(gpu: SimulatedGPU, tensor: torch.Tensor, *args: Any) -> Any:
    _refuse_without_engine(gpu, tensor)
    return _convolution(tensor, *args)


def _refuse_without_engine(gpu: SimulatedGPU, tensor: torch.Tensor) -> None:
    """Fail as cuDNN does below compute capability 8.0; ``conv2d`` takes other kernels there."""
    if tensor.dtype is torch.bfloat16 and gpu.model.major < 8:
        raise RuntimeError("GET was unable to find an engine to execute this computation")


def _transposed(
    gpu: SimulatedGPU,
    tensor: torch.Tensor,
    weight: torch.Tensor,
    padding: Any,
    output_padding: Any,
    stride: Any,
    dilation: Any,
    groups: int,
    *_tuning: Any,
) -> Any:
    _refuse_without_engine(gpu, tensor)
    return _aten.convolution.default(
        tensor, weight, None, stride, padding, dilation, True, output_padding, groups
    )


def _convolve_add_and_clamp(
    gpu: SimulatedGPU,
    tensor: torch.Tensor,
    weight: torch.Tensor,
    added: torch.Tensor,
    alpha: float | None,
    *options: Any,
) -> Any:
    result = _convolve(gpu, tensor, weight, *options)
    _aten.add_.Tensor(result, added, alpha=1 if alpha is None else alpha)
    return _aten.relu_.default(result)


define(
    "aten::cudnn_convolution",
    composite=lambda gpu, tensor, weight, padding, stride, dilation, groups, *_tuning: _convolve(
        gpu, tensor, weight, None, stride, padding, dilation, groups
    ),
)
define("aten::cudnn_convolution_transpose", composite=_transposed)
define(
    "aten::cudnn_convolution_relu",
    composite=lambda gpu, *args: _aten.relu_.default(_convolve(gpu, *args)),
)
define("aten::cudnn_convolution_add_relu", composite=_convolve_add_and_clamp)
