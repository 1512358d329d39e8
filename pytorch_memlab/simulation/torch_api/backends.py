"""``torch.backends.cuda`` and ``torch.backends.cudnn``: a build with CUDA and cuDNN.

Kernels of attention, cuFFT's plans, and the recurrent modules ask them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.backends.cudnn.rnn
from torch._subclasses import FakeTensor

from ..._common.patching.patches import Patches
from ..machine.machine import Machine
from ..machine.refused_calls import refusal, unsupported
from ..ops.attention.sdp_backend import AttentionCall, SDPBackend, against, cudnn_version
from ..ops.convolution.conv_backend import convolution_of
from ..ops.core.memory_formats import cudnn_conv_memory_format
from ..ops.rnn.cudnn_rnn import MODES, flatten

_BACKENDS = {
    "_can_use_flash_attention": SDPBackend.FLASH,
    "_can_use_mem_efficient_attention": SDPBackend.EFFICIENT,
    "_can_use_cudnn_attention": SDPBackend.CUDNN,
}
_CONVOLUTION = (
    *("input", "weight", "bias", "stride", "padding", "dilation"),
    *("transposed", "output_padding", "groups"),
)
"""Arguments of ``torch._C._select_conv_backend``."""

_MOST_PLANS = 4096
"""Plans that cuFFT's cache holds by default (``aten/src/ATen/native/cuda/CuFFTPlanCache.h``)."""
_BENCHMARK_LIMIT = 10
"""Plans that cuDNN tries by default when it benchmarks (``aten/src/ATen/Context.h``)."""


def install(machine: Machine, patches: Patches) -> None:
    """Answer for a build with CUDA and cuDNN until undone."""
    # ``enabled``, ``benchmark``, ``deterministic`` and ``allow_tf32`` of ``torch.backends.cudnn``
    # are PyTorch's own, and decide here as on CUDA. The version is that of the cuDNN which the
    # release of PyTorch is installed with.
    limit = [_BENCHMARK_LIMIT]
    answers = {
        "_is_flash_attention_available": lambda: True,
        "_has_cudnn": True,
        "_cuda_get_cudnn_benchmark_limit": lambda: limit[0],
        "_cuda_set_cudnn_benchmark_limit": lambda n: limit.__setitem__(0, n),
        **{name: _asks(machine, backend) for name, backend in _BACKENDS.items()},
    }
    patches.set_all(torch._C, answers | _libraries())
    patches.set(torch.backends.cuda, "is_built", lambda: True)
    _install_plan_caches(machine, patches)
    _install_convolutions(machine, patches)
    module = vars(torch.backends.cudnn)["m"]  # which its properties stand before
    patches.set(module, "_init", lambda: True)
    patches.set(torch.backends.cudnn, "version", cudnn_version)
    patches.set(torch, "_use_cudnn_rnn_flatten_weight", lambda: True)
    patches.set(torch.backends.cudnn.rnn, "get_cudnn_mode", MODES.index)
    patches.set(torch, "_cudnn_rnn_flatten_weight", flatten)


def _libraries() -> dict[str, Callable[..., Any]]:
    """The libraries that decompose and multiply matrices, and their tuning: the build has all."""
    linalg = [torch._C._get_linalg_preferred_backend()]
    blas = [torch._C._get_blas_preferred_backend()]

    def tune_products(value: bool) -> None:
        if value:
            raise unsupported("torch.cuda.tunable.enable(True)")

    return {
        "_get_linalg_preferred_backend": lambda: linalg[0],
        "_set_linalg_preferred_backend": lambda backend: linalg.__setitem__(0, backend),
        "_get_blas_preferred_backend": lambda: blas[0],
        "_set_blas_preferred_backend": lambda backend: blas.__setitem__(0, backend),
        "_cuda_tunableop_is_enabled": lambda: False,
        "_cuda_tunableop_tuning_is_enabled": lambda: True,
        "_cuda_tunableop_enable": tune_products,
    }


def _install_plan_caches(machine: Machine, patches: Patches) -> None:
    limits: dict[int, int] = {}

    def limit(cache: Any) -> int:
        return limits.get(machine.gpu(cache.device_index).index, _MOST_PLANS)

    def set_limit(cache: Any, size: int) -> None:
        limits[machine.gpu(cache.device_index).index] = size

    def clear(cache: Any) -> None:
        machine.gpu(cache.device_index)

    size = property(refusal("torch.backends.cuda.cufft_plan_cache.size"))
    members = {"size": size, "max_size": property(limit, set_limit), "clear": clear}
    patches.set_all(torch.backends.cuda.cuFFTPlanCache, members)


def _install_convolutions(machine: Machine, patches: Patches) -> None:
    """Answer who convolves tensors of a simulated GPU."""

    @patches.around(torch._C, "_select_conv_backend")
    def select(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        call: Any = dict(zip(_CONVOLUTION, args, strict=False)) | kwargs
        tensor, weight, _, *options = (call.get(name) for name in _CONVOLUTION)
        if isinstance(tensor, FakeTensor) or machine.gpu_of(tensor) is None:
            return original(*args, **kwargs)
        return convolution_of(tensor, weight, *options).backend_in_pytorch

    @patches.around(torch._C, "_conv_determine_backend_memory_format")
    def memory_format(
        original: Callable[..., torch.memory_format],
        tensor: torch.Tensor,
        weight: torch.Tensor,
        backend: Any,
    ) -> torch.memory_format:
        is_fake = isinstance(tensor, FakeTensor)
        if is_fake or machine.gpu_of(tensor) is None or not backend.name.startswith("Cudnn"):
            return original(tensor, weight, backend)
        return cudnn_conv_memory_format(tensor, weight)


def _asks(machine: Machine, backend: SDPBackend) -> Callable[..., bool]:
    def can_use(params: Any, debug: bool = False) -> bool:
        gpu = machine.gpu_of(params.query)
        if gpu is None:
            return False
        tensors = params.query, params.key, params.value, params.attn_mask
        grouped = getattr(params, "enable_gqa", False)
        call = AttentionCall(gpu.model, *tensors, params.dropout, params.is_causal, grouped)
        runs = against(backend, call) is None
        if debug and not runs:
            warnings.warn(f"{against(backend, call)}", stacklevel=2)
        return runs

    return can_use
