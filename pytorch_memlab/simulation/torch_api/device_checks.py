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

from ..._common.patching.patches import Patches
from ..machine.machine import Machine
from ..ops.core.memory_formats import is_dense

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


def _result(name: str, input: Any, *_rest: Any, out: Any = None, **_named: Any) -> None:
    _same_device(name, out, input)


def _norm(name: str, input: Any, *_rest: Any, out: Any = None, **_named: Any) -> None:
    """Norms name the result and the input the other way round."""
    _same_device(name, input, out)


def _rank(
    input: Any, tol: Any = None, *_rest: Any, atol: Any = None, rtol: Any = None, **named: Any
) -> None:
    name = "torch.linalg.matrix_rank"
    _same_device(name, named.get("out"), input)
    _same_device(name, tol if atol is None else atol, input, "atol")
    _same_device(name, rtol, input, "rtol")


def _same_device(name: str, result: Any, input: Any, role: str = "result") -> None:
    """``checkSameDevice`` of ``aten/src/ATen/native/LinearAlgebraUtils.h``."""
    if _are_tensors(result, input) and result.device != input.device:
        raise RuntimeError(
            f"{name}: Expected {role} and input tensors to be on the same device, but got {role} on"
            f" {result.device} and input on {input.device}"
        )


def _sum(verb: str, tensors: Any, other: Any, *_rest: Any, alpha: Any = 1, **_named: Any) -> None:
    """``foreach_binary_op`` of ``aten/src/ATen/native/cuda/ForeachBinaryOpScalarTensor.cu``."""
    # One kernel for all tensors takes no number of the CPU; a kernel for each of them does.
    if not (tensors and _are_all(tensors) and _are_tensors(other) and tensors[0].is_cuda):
        return
    kinds = {(tensor.device, tensor.dtype, is_dense(tensor)) for tensor in tensors}
    device, dtype = tensors[0].device, tensors[0].dtype
    in_one_kernel = kinds == {(device, dtype, True)} and other.dtype is dtype
    if not in_one_kernel or torch.result_type(tensors[0], alpha) is not dtype:
        return
    if not other.dim() and other.device != device:
        raise RuntimeError(
            f"scalar tensor {verb}expected to be on {device} but is on {other.device}"
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
_WITH_RESULT: Final = {
    torch.linalg.cond: "linalg.cond",
    torch.linalg.pinv: "linalg.pinv",
    torch.linalg.tensorinv: "tensorinv",
    torch.linalg.tensorsolve: "tensorsolve",
}
_NORMS: Final = {torch.linalg.norm: "linalg.norm", torch.linalg.matrix_norm: "linalg.matrix_norm"}
_CHECKS: Final[dict[Any, Check]] = {
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **dict.fromkeys(_RECURRENT, _recurrent),
    **dict.fromkeys((torch.take_along_dim, torch.Tensor.take_along_dim), _along),
    torch.mode: _mode,
    torch._foreach_add: partial(_sum, ""),
    torch._foreach_add_: partial(_sum, "is "),
    torch.linalg.matrix_rank: _rank,
    **{function: partial(_result, name) for function, name in _WITH_RESULT.items()},
    **{function: partial(_norm, name) for function, name in _NORMS.items()},
}
