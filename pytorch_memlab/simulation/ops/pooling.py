"""Pooling, padding, folding, antialiasing, affine grids: copies of what lies otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from ..machine.refused_calls import unsupported
from ..machine.simulated_gpu import SimulatedGPU
from .core.low_precision import in_single_precision
from .core.memory_formats import contiguous_like, suggest_memory_format
from .core.op_call import OpCall, contiguous
from .core.registry import Memory, define, op

_CUDA: Final = "aten/src/ATen/native/cuda/"
_BATCHED_VOLUMES: Final = 5
_BATCHED_IMAGES: Final = 4


def formatted_inputs(
    *positions: int,  # of the inputs
    kernel: str = "",  # name of CUDA's kernel, if it refuses the integers that the CPU's takes
) -> Memory:
    """Inputs become contiguous in the memory format of the last one, channels last or first."""

    def memory(call: OpCall) -> None:
        if kernel:
            call.refuse_integers(kernel)
        call.alloc_outputs()
        last: torch.Tensor = call.args[positions[-1]]
        wanted = suggest_memory_format(last)
        for position in positions:
            tensor: torch.Tensor = call.args[position]
            fits = tensor.dim() == last.dim()
            call.alloc_contiguous(tensor, memory_format=wanted if fits else torch.contiguous_format)

    return memory


def _register(file: str, memory: Memory, *names: str) -> None:
    op(*(f"aten::{name}" for name in names), source=_CUDA + file)(memory)


for _file, _name, _kernel in (
    ("DilatedMaxPool2d.cu", "max_pool2d_with_indices", "max_pool2d_with_indices_out_cuda_frame"),
    ("DilatedMaxPool3d.cu", "max_pool3d_with_indices", "max_pool3d_with_indices_out_frame"),
    ("AveragePool2d.cu", "avg_pool2d", "avg_pool2d_out_cuda_frame"),
    ("AdaptiveAveragePooling.cu", "_adaptive_avg_pool2d", ""),
):
    _register(_file, formatted_inputs(0, kernel=_kernel), _name)
    _register(_file, formatted_inputs(0, 1), f"{_name}_backward")

for _file, _kind in (("ReflectionPad.cu", "reflection"), ("ReplicationPadding.cu", "replication")):
    for _dims in (1, 2, 3):
        _name = f"{_kind}_pad{_dims}d"
        _register(_file, contiguous(0), _name, f"{_name}_backward")


def _in_storage_of_input(args: tuple[Any, ...], result: torch.Tensor) -> torch.Tensor:
    """The output begins as large as the input, and a storage never shrinks: ``empty_like``."""
    numel = max(args[0].numel(), result.numel())
    return result.new_empty(numel)[: result.numel()].view(result.shape)


def _unfolded(call: OpCall) -> None:
    """An output that needs more than its input has gets another storage."""
    source: torch.Tensor = call.args[0]
    grows = call.result.nbytes > source.nbytes
    first = call.alloc_temp(source.nbytes) if grows else None
    if first is None:
        call.alloc_outputs()
    call.alloc_contiguous(source)
    call.alloc_outputs()
    if first is not None:
        call.free_temp(first)


for _name in ("im2col", "col2im"):
    op(
        f"aten::{_name}",
        source=_CUDA + "Im2Col.cu, Col2Im.cu",
        corrects_meta=_in_storage_of_input,
    )(_unfolded)


op(
    "aten::avg_pool3d_backward",
    source=_CUDA + "AveragePool3d.cu",
    reference=in_single_precision(torch.ops.aten.avg_pool3d_backward.default),
)(contiguous(0))
_register("AdaptiveMaxPooling3d.cu", contiguous(0), "adaptive_max_pool3d_backward")
_register("AdaptiveAveragePooling3d.cu", contiguous(0), "_adaptive_avg_pool3d_backward")


def _contiguous(kernel: Any) -> Callable[..., torch.Tensor]:
    def reference(*args: Any, **kwargs: Any) -> torch.Tensor:
        result: torch.Tensor = kernel(*args, **kwargs)
        return result.contiguous()

    return reference


for _name in ("max_unpool2d", "max_unpool3d"):
    op(
        f"aten::{_name}",
        source=_CUDA + "MaxUnpooling.cu",
        reference=_contiguous(getattr(torch.ops.aten, _name).default),
    )(contiguous(0, 1, before_outputs=True))


@op(
    "aten::avg_pool3d",
    source=_CUDA + "AveragePool3d.cu",
    reference=in_single_precision(torch.ops.aten.avg_pool3d.default),
)
def _avg_pool3d(call: OpCall) -> None:
    call.refuse_integers("avg_pool3d_out_cuda")
    call.alloc_outputs()
    call.alloc_contiguous(call.args[0])


@op("aten::_adaptive_avg_pool3d", source=_CUDA + "AdaptiveAveragePooling3d.cu")
def _adaptive_avg_pool3d(call: OpCall) -> None:
    """A batch becomes contiguous, a single volume is read by its strides."""
    if call.args[0].dim() == _BATCHED_VOLUMES:
        call.alloc_contiguous(call.args[0])


@op("aten::adaptive_max_pool3d", source=_CUDA + "AdaptiveMaxPooling3d.cu")
def _adaptive_max_pool3d(call: OpCall) -> None:
    call.alloc_outputs()
    _adaptive_avg_pool3d(call)


@op("aten::adaptive_max_pool2d", source=_CUDA + "AdaptiveMaxPooling2d.cu")
def _adaptive_max_pool2d(call: OpCall) -> None:
    """Rows of outputs that lie channels last, and a contiguous batch."""
    call.alloc_outputs()
    call.alloc_contiguous(*call.result)
    if call.args[0].dim() == _BATCHED_IMAGES:
        call.alloc_contiguous(call.args[0])


@op("aten::adaptive_max_pool2d_backward", source=_CUDA + "AdaptiveMaxPooling2d.cu")
def _adaptive_max_pool2d_backward(call: OpCall) -> None:
    call.alloc_outputs()
    call.alloc_contiguous(call.args[0], call.args[2], call.result)


define("aten::fractional_max_pool3d_backward", meta=contiguous_like(1))


def _affine_grid(_gpu: SimulatedGPU, *args: Any) -> Any:
    op = torch.ops.aten.affine_grid_generator.default
    try:
        return op._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args)
    except NotImplementedError as error:  # the CPU makes no volumes of half precision
        raise unsupported(op.name()) from error


define(
    "aten::affine_grid_generator",
    source="aten/src/ATen/native/AffineGridGenerator.cpp",
    composite=_affine_grid,
)


def _refusing_integers(kernel: str) -> Memory:
    """The memory of an op that allocates its outputs only, by a kernel that takes no integers."""

    def memory(call: OpCall) -> None:
        call.refuse_integers(kernel)

    return memory


for _kind in ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d"):
    op(f"aten::upsample_{_kind}", source=f"{_CUDA}UpSample{_kind.capitalize()}.cu")(
        _refusing_integers(f"upsample_{_kind}_out_frame")
    )
for _kind in ("bilinear2d", "bicubic2d"):
    _name = f"_upsample_{_kind}_aa"
    for _op, _memory in (
        (_name, _refusing_integers("upsample_bilinear2d_out_frame")),
        (f"{_name}_backward", None),
    ):
        define(
            f"aten::{_op}",
            memory=_memory,
            source=_CUDA + "UpSampleBilinear2d.cu",
            reference=in_single_precision(getattr(torch.ops.aten, _op).default),
        )

for _name in ("grid_sampler_2d", "grid_sampler_3d"):
    # The CPU's kernels round the places between elements to half precision.
    for _op in (_name, f"{_name}_backward"):
        define(
            f"aten::{_op}",
            source=_CUDA + "GridSampler.cu",
            reference=in_single_precision(getattr(torch.ops.aten, _op).default),
        )
