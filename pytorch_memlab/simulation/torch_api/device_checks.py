"""Functions that check the devices of their tensors themselves, in words of their own.

Their checks come before the one that all ops have. C++ takes every tensor for one of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's name for it
from torch.backends import mkldnn

from ..._common.patches import Patches
from ..machine.machine import Machine

Check = Callable[..., None]


def install(machine: Machine, _patches: Patches) -> None:
    for function, check in _CHECKS.items():
        machine.replacements[function] = partial(_checked, check, function)


def _checked(check: Check, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    check(*args, **kwargs)
    return function(*args, **kwargs)


def _convolution(input: Any, weight: Any, bias: Any = None, *_rest: Any, **_named: Any) -> None:
    """``check_input_same_type_as_parameters`` of ``aten/src/ATen/native/Convolution.cpp``."""
    for name, other in (("weight", weight), ("bias", bias)):
        if not _are_tensors(input, other) or input.is_cuda == other.is_cuda:
            continue
        words = f"Input type ({input.type()}) and {name} type ({other.type()}) should be the same"
        if not input.is_cuda and input.dtype is torch.float32 and mkldnn.is_available():
            words += f" or input should be a MKLDNN tensor and {name} is a dense tensor"
        raise RuntimeError(words)


def _recurrent(*args: Any, **_named: Any) -> None:
    """``check_attributes`` of ``aten/src/ATen/native/RNN.h``, of padded and of packed input."""
    tensor, *others = args[:4]
    is_packed = len(args) > 3 and isinstance(others[0], torch.Tensor) and _are_all(others[2])
    hidden, weights = others[1:3] if is_packed else others[:2]
    hidden = (hidden,) if isinstance(hidden, torch.Tensor) else hidden
    for name, group in (("hidden", hidden), ("parameter", weights)):
        for other in group:
            if _are_tensors(tensor, other) and tensor.device != other.device:
                raise RuntimeError(
                    f"Input and {name} tensors are not at the same device, found input tensor at"
                    f" {tensor.device} and {name} tensor at {other.device}"
                )


def _along(input: Any, indices: Any, *_rest: Any, **_named: Any) -> None:
    """``checkDevice`` of ``aten/src/ATen/TensorUtils.cpp``."""
    if _are_tensors(input, indices) and input.device != indices.device:
        raise RuntimeError(
            f"Expected tensor to have {input.device} Device, but got tensor with"
            f" {indices.device} Device (while checking arguments for torch.take_along_dim():)"
        )


def _mode(input: Any, *_rest: Any, out: Any = None, **_named: Any) -> None:
    """``mode_out`` of ``aten/src/ATen/native/TensorCompare.cpp``."""
    for name, other in zip(("values", "indices"), out or (), strict=False):
        if _are_tensors(input, other) and input.device != other.device:
            raise RuntimeError(
                f"expected device '{input.device}' but got '{other.device}' for {name} output"
            )


def _result(input: Any, *_rest: Any, out: Any = None, **_named: Any) -> None:
    """``checkSameDevice`` of ``aten/src/ATen/native/LinearAlgebraUtils.h``."""
    if _are_tensors(input, out) and input.device != out.device:
        raise RuntimeError(
            "Expected result and input tensors to be on the same device, but got result on"
            f" {out.device} and input on {input.device}"
        )


def _are_tensors(*values: Any) -> bool:
    return _are_all(values)


def _are_all(values: Iterable[Any]) -> bool:
    return isinstance(values, (tuple, list)) and all(
        isinstance(value, torch.Tensor) for value in values
    )


_CONVOLUTIONS: Final = (
    *(F.conv1d, F.conv2d, F.conv3d),
    *(F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
)
_RECURRENT: Final = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
_WITH_RESULT: Final = (
    *(torch.linalg.cond, torch.linalg.matrix_rank, torch.linalg.pinv),
    *(torch.linalg.tensorinv, torch.linalg.tensorsolve),
)
_CHECKS: Final[dict[Any, Check]] = {
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **dict.fromkeys(_RECURRENT, _recurrent),
    **dict.fromkeys((torch.take_along_dim, torch.Tensor.take_along_dim), _along),
    torch.mode: _mode,
    **dict.fromkeys(_WITH_RESULT, _result),
}
