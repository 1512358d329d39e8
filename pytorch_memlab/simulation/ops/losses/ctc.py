"""CTC loss: lengths that CUDA reads as numbers, labels that it copies to the GPU, and cuDNN.

``aten/src/ATen/native/LossCTC.cpp`` chooses, by the rules of ``native/cudnn/LossCTC.cpp``.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from ...machine import active
from ...machine.simulated_gpu import SimulatedGPU
from ..core.memory_formats import contiguous_like
from ..core.op_call import CUDNN_WORKSPACES, FLOAT, INDEX, OpCall
from ..core.registry import DataDependence, define, estimated, op

Lengths = list[int] | torch.Tensor

_SOURCE: Final = "aten/src/ATen/native/cuda/LossCTC.cu"
_MOST_LABELS: Final = 255
"""Of a target that cuDNN takes: ``_use_cudnn_ctc_loss`` in ``native/cudnn/LossCTC.cpp``."""

# ``Reduction::Mean`` and ``Reduction::Sum`` in ``aten/src/ATen/core/Reduction.h``.
_MEAN: Final = 1
_SUM: Final = 2

_aten: Final = torch.ops.aten
_COMPOSITE: Final = torch._C.DispatchKey.CompositeImplicitAutograd


def _loss(
    gpu: SimulatedGPU,
    probabilities: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    reduction: int = _MEAN,
    zero_infinity: bool = False,
) -> Any:
    with torch._C.DisableTorchFunction():
        all_lengths = input_lengths, target_lengths
        longest = targets.shape[-1] if targets.dim() else 0
        lengths = (
            _known_numbers(input_lengths, probabilities.shape[0]),
            _known_numbers(target_lengths, longest, is_sum=targets.dim() == 1),
        )
        options = (blank, reduction, zero_infinity)
        if _are_for_cudnn(probabilities, targets, *lengths, blank):
            if all(
                isinstance(of_lengths, torch.Tensor) and of_lengths.dtype == torch.int32
                for of_lengths in all_lengths
            ):
                op = _aten._cudnn_ctc_loss.Tensor
                return _reduced(op, (probabilities, targets, *all_lengths), options)
            if targets.is_cpu and all(length == probabilities.shape[0] for length in lengths[0]):
                op = _aten._cudnn_ctc_loss.default
                return _reduced(op, (probabilities, targets, *lengths), options)
        targets = targets.to(gpu.device, torch.int64)
        run = _aten.ctc_loss.IntList._op_dk
        return run(_COMPOSITE, probabilities, targets, *lengths, *options)


def _numbers(lengths: Lengths) -> list[int]:
    return lengths.reshape(-1).tolist() if isinstance(lengths, torch.Tensor) else lengths


_LONGEST: Final = DataDependence("ctc_loss", "every length the longest")


def _known_numbers(lengths: Lengths, longest: int, *, is_sum: bool = False) -> list[int]:
    """Lengths; without values the longest that they may be, or a first one of all elements."""
    values = active.values()
    if values is None or not isinstance(lengths, torch.Tensor) or not values.lacks_values(lengths):
        return _numbers(lengths)
    _LONGEST.count(values, "aten::ctc_loss")
    count = lengths.numel()
    return [longest, *[0] * (count - 1)][:count] if is_sum else [longest] * count


def _are_for_cudnn(
    probabilities: torch.Tensor,
    targets: torch.Tensor,
    steps: list[int],
    labels: list[int],
    blank: int,
) -> bool:
    return (
        torch._C._get_cudnn_enabled()
        and blank == 0
        and targets.dim() == 1
        and targets.is_contiguous()
        and targets.dtype == torch.int32
        and probabilities.dtype == torch.float32
        and probabilities.dim() in (2, 3)
        and all(few <= min(most, _MOST_LABELS) for most, few in zip(steps, labels, strict=False))
    )


def _reduced(op: Any, inputs: tuple[Any, ...], options: tuple[int, int, bool]) -> torch.Tensor:
    probabilities, *others = inputs
    blank, reduction, zero_infinity = options
    is_batched = probabilities.dim() == 3
    batch = probabilities if is_batched else probabilities.unsqueeze(1)
    losses: torch.Tensor = op(batch, *others, blank, True, zero_infinity)[0]
    if reduction == _MEAN:
        lengths = others[-1]
        if not isinstance(lengths, torch.Tensor):
            lengths = torch.empty(len(lengths), dtype=losses.dtype, device=losses.device).copy_(
                torch.tensor(lengths)
            )
        return (losses / lengths.clamp_min(1)).mean()
    if reduction == _SUM:
        return losses.sum()
    return losses if is_batched else losses.squeeze(0)


define("aten::ctc_loss.IntList", "aten::ctc_loss.Tensor", cuda_dispatch=_loss)
define("aten::_ctc_loss.Tensor", "aten::_ctc_loss_backward.Tensor", takes_cpu_tensors=True)


@op("aten::_ctc_loss", source=_SOURCE, takes_cpu_tensors=True)
def _ctc_loss(call: OpCall) -> None:
    """The lengths of targets and inputs, and offsets."""
    call.alloc_temps([call.args[0].shape[1] * INDEX] * 3)


@estimated(
    "aten::_ctc_loss_backward", source=_SOURCE, meta=contiguous_like(1), takes_cpu_tensors=True
)
def _ctc_loss_backward(call: OpCall) -> None:
    """The lengths, and beta, as large as alpha; for large problems, the gradient of blanks."""
    probabilities, alpha = call.args[1], call.argument("log_alpha")
    steps, batch, labels = probabilities.shape
    call.alloc_temps([batch * INDEX] * 3)
    call.alloc_copy(alpha)
    call.alloc_outputs()
    # ``is_large`` in ``ctc_loss_backward_gpu_template`` of ``LossCTC.cu``: a fit to timings.
    if 2 * steps + 24 * batch // 10 + 2 * labels // 10 <= 450:
        return
    itemsize = probabilities.element_size()
    joined = batch * alpha.shape[1] * (alpha.shape[2] // 2 + 1) * itemsize
    with call.scope():
        call.alloc_temps([joined, batch * alpha.shape[1] * itemsize, joined])
    if call.argument("zero_infinity"):
        with call.scope():
            call.alloc_temps([batch, itemsize])
            call.alloc_copy(probabilities)


def _cudnn_reference(
    probabilities: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int,
    _is_deterministic: bool,
    _zero_infinity: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    call = (targets.long(), _numbers(input_lengths), _numbers(target_lengths))
    losses, alpha = _aten._ctc_loss.default(probabilities, *call, blank)
    ones = torch.ones_like(losses)
    gradient = _aten._ctc_loss_backward.default(ones, probabilities, *call, losses, alpha, blank)
    return losses, gradient


@estimated(
    "aten::_cudnn_ctc_loss",
    "aten::_cudnn_ctc_loss.Tensor",
    source="aten/src/ATen/native/cudnn/LossCTC.cpp",
    reference=_cudnn_reference,
    meta=lambda log_probs, *_: (
        log_probs.new_empty(log_probs.shape[1]),
        log_probs.new_empty(log_probs.shape),
    ),
    takes_cpu_tensors=True,
)
def _cudnn_ctc_loss(call: OpCall) -> None:
    """Lengths in tensors are copied to the GPU; the gradient is allocated before the losses."""
    if isinstance(call.args[2], torch.Tensor):
        for arg in call.args[1:4]:
            if call.is_on_cpu(arg):
                call.alloc_copy(arg)
    losses, gradient = call.result
    call.alloc_outputs(gradient, losses)
    call.leave_out(CUDNN_WORKSPACES, _cudnn_bound(call.args[0]))


def _cudnn_bound(probabilities: torch.Tensor) -> int:
    """Probabilities of each label forward and backward, and a copy of those that are given."""
    # Targets have 255 labels at most (``LossCTC.cpp``), with blanks between them.
    steps, batch, _classes = probabilities.shape
    return FLOAT * (2 * steps * batch * (2 * _MOST_LABELS + 1) + probabilities.numel())
