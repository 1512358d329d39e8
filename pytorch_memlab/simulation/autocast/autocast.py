"""``torch.autocast("cuda")``: CUDA's lists of casts, for the tensors of simulated GPUs.

PyTorch's own ``autocast`` runs unchanged: it puts the thread's state where C++ keeps it. C++ asks
the autocast of CUDA for tensors of CUDA only, and sees none; so in each simulated thread every op
asks it, and its kernels are replaced by those here, which cast what lives on a simulated GPU.
They stand above autograd, as CUDA's do: a cast is a node of the graph, and an op inside a
composite one is cast like one that the program calls.
"""

from __future__ import annotations

import tomllib
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache as once, partial
from pathlib import Path
from typing import Any, Final

import torch

from ..._common.patching.patches import Patches
from ..machine import active
from ..machine.machine import Machine
from ..machine.op_arguments import Args, Kwargs, tensors_in
from ..ops.core.cuda_dispatch import cuda_dispatch_of, overload_named
from ..ops.rnn.cudnn_rnn import CudnnRNNCall, views

OnGPU = Callable[[Args, Kwargs], Any]  # runs an op of which a tensor lives on a simulated GPU

_KEY: Final = torch._C.DispatchKey.AutocastCUDA
_THIS: Final = torch._C.DispatchKeySet(_KEY)
_WITH_HOST: Final = _THIS.add(torch._C.DispatchKey.AutocastCPU)
_exclude: Final = torch._C._ExcludeDispatchKeyGuard
_get_dtype = torch.get_autocast_dtype
_cast_to_dtype = torch.ops.aten.to.dtype
_HALF: Final = torch.float16

LISTS: Final[Mapping[str, Any]] = tomllib.loads(
    Path(__file__).with_name("lists.toml").read_text(encoding="utf-8")
)
"""Names of the ops that ``torch.autocast("cuda")`` casts, by what it does with them."""

_installed: list[torch.library.Library] = []


def install(_machine: Machine, patches: Patches) -> None:
    """Put CUDA's lists in force in simulated threads."""
    # A simulation inside another finds them in force, and leaves them so.
    if _installed:
        return
    casts_serve_training()  # asked before a simulated thread's modes see its ops
    clear = torch.clear_autocast_cache

    def clear_both() -> None:
        clear()
        cached_casts.clear()

    patches.set(torch, "clear_autocast_cache", clear_both)
    patches.before_undo(_uninstall)
    library = torch.library.Library("aten", "IMPL", "AutocastCUDA")
    _installed.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, kernel in _kernels():
            library.impl(name, kernel)
        for name in LISTS["RECURRENT_COMPOSITE"]:
            library.impl(name, cuda_dispatch_of(overload_named(name)))


def _uninstall() -> None:
    while _installed:
        _installed.pop()._destroy()
    cached_casts.clear()


@contextmanager
def autocast_key_included() -> Iterator[None]:
    """Let every op of this thread ask the autocast of CUDA, while a program turns it on."""
    before = torch._C._dispatch_tls_is_dispatch_key_included(_KEY)
    torch._C._dispatch_tls_set_dispatch_key_included(_KEY, True)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_included(_KEY, before)


@once
def _kernels() -> list[tuple[str, Any]]:
    """The kernels of all simulations: those of ops that this torch casts under autocast."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    policies: dict[str, Callable[[Any], OnGPU]] = {
        "LOWER_PRECISION": _cast_to(lambda _args, _kwargs: _get_dtype("cuda")),
        "FP32": _cast_to(lambda _args, _kwargs: torch.float32),
        "FP32_SET_OPT_DTYPE": _fp32_set_opt_dtype,
        "FP32_APPEND_DTYPE": _fp32_append_dtype,
        "PROMOTE": _cast_to(widest),
        "RECURRENT": lambda op: partial(call_with_flat_casts, op),
        "BANNED": _banned,
    }
    return [
        (name, _kernel(overload_named(name), make(overload_named(name))))
        for policy, make in policies.items()
        for name in LISTS[policy]
        # A build without CUDA has none for cuDNN's networks.
        if policy == "RECURRENT" or has_kernel(f"aten::{name}", "AutocastCUDA")
    ]


def _cast_to(choose: Callable[[Args, Kwargs], torch.dtype]) -> Callable[[Any], OnGPU]:
    """Runs an op on casts of its arguments to one dtype."""

    def make(op: Any) -> OnGPU:
        return lambda args, kwargs: call_with_casts(op, choose(args, kwargs), args, kwargs)

    return make


def _fp32_set_opt_dtype(op: Any) -> OnGPU:
    arguments = enumerate(op._schema.arguments)
    [(position, argument)] = [numbered for numbered in arguments if numbered[1].name == "dtype"]

    def set_dtype(args: Args, kwargs: Kwargs) -> Any:
        dtype_argument = args[position] if len(args) > position else kwargs.get("dtype")
        if dtype_argument is not None or not is_eligible(args[0]):
            return op(*args, **kwargs)
        if argument.kwarg_only or len(args) <= position:
            return op(*args, **{**kwargs, "dtype": torch.float32})
        return op(*args[:position], torch.float32, *args[position + 1 :], **kwargs)

    return set_dtype


def _fp32_append_dtype(op: Any) -> OnGPU:
    name = op._schema.name.removeprefix("aten::")
    with_dtype = overload_named(LISTS["FP32_APPEND_DTYPE"][f"{name}.{op._schema.overload_name}"])
    defaults = [argument.default_value for argument in op._schema.arguments]

    def append(args: Args, kwargs: Kwargs) -> Any:
        dtype = torch.float32 if is_eligible(args[0]) else args[0].dtype
        return with_dtype(*args, *defaults[len(args) :], **kwargs, dtype=dtype)

    return append


def _banned(op: Any) -> OnGPU:
    name = op._schema.name.removeprefix("aten::")

    def refuse(args: Args, kwargs: Kwargs) -> Any:
        raise RuntimeError(
            f"torch.nn.functional.{name} is unsafe to autocast, and CUDA refuses it: "
            f"use {name}_with_logits on what comes before the sigmoid"
        )

    return refuse


def _kernel(op: Any, on_gpu: OnGPU) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            if not any(active.holds(tensor) for tensor in tensors_in(args, kwargs)):
                with _exclude(_THIS):
                    return op(*args, **kwargs)
            with _exclude(_WITH_HOST):
                return on_gpu(args, kwargs)

    return kernel


class WeightCache:
    """The casts of weights, kept until the outermost autocast exits."""

    def __init__(self) -> None:
        self._casts: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}
        self._outlived: list[torch.Tensor] = []

    def cast(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A weight's cast, the same one for every use."""
        key: int = tensor._cdata
        entry = self._casts.get(key)
        if entry is not None:
            if entry[0]() is tensor:
                return entry[1]
            # CUDA keeps the cast of a weight that was freed, like all others.
            self._outlived.append(entry[1])
        with torch.set_grad_enabled(torch.is_grad_enabled() or casts_serve_training()):
            cast: torch.Tensor = _cast_to_dtype(tensor, dtype)
        self._casts[key] = (weakref.ref(tensor), cast)
        return cast

    def clear(self) -> None:
        self._casts.clear()
        self._outlived.clear()


cached_casts = WeightCache()  # one for all threads, as CUDA's is


@once
def casts_serve_training() -> bool:
    """True if training can use every cast that this release of PyTorch caches."""
    # Then a cast that is made under ``no_grad`` has a gradient all the same, and none is cached in
    # inference mode. Earlier releases cache in every mode what the mode makes. PyTorch's own
    # autocast of the CPU shows which release this is: both devices share one cache.
    with torch.inference_mode(False), torch.enable_grad():
        weight = torch.ones(1, 1, device="cpu", requires_grad=True)
        other = torch.ones(1, 1, device="cpu")
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=True):
            with torch.no_grad():
                torch.mm(other, weight)
            return torch.mm(other, weight).requires_grad


def call_with_casts(op: Any, dtype: torch.dtype, args: Args, kwargs: Kwargs) -> Any:
    """Run an op on casts of its arguments."""
    # Arguments are cast from the last to the first, a list's tensors from the first on, and all
    # casts are freed from the first on: so the compiler arranges it that builds PyTorch.
    values = [*args, *kwargs.values()]
    made: list[torch.Tensor] = []
    for position in reversed(range(len(values))):
        casts: list[torch.Tensor] = []
        values[position] = _cast(values[position], dtype, casts)
        made = casts + made
    del casts
    named = dict(zip(kwargs, values[len(args) :], strict=True))
    del values[len(args) :]
    result = op(*values, **named)
    del values, named
    while made:
        del made[0]
    return result


def widest(args: Args, kwargs: Kwargs) -> torch.dtype:
    """The dtype in which CUDA's promote list runs an op."""
    lower = _get_dtype("cuda")
    dtype = lower
    for tensor in tensors_in(args, kwargs):
        if is_eligible(tensor) and tensor.dtype != lower:
            if tensor.dtype != torch.float32 and dtype != torch.float32:
                raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
            dtype = torch.float32
    return dtype


def is_eligible(tensor: torch.Tensor) -> bool:
    """True if autocast casts a tensor: it lives on a simulated GPU, and is no double."""
    return tensor.is_floating_point() and tensor.dtype != torch.float64 and active.holds(tensor)


def _cast(value: Any, dtype: torch.dtype, made: list[torch.Tensor]) -> Any:
    if isinstance(value, (list, tuple)):
        return [_cast(item, dtype, made) for item in value]
    if not isinstance(value, torch.Tensor) or value.dtype == dtype or not is_eligible(value):
        return value
    cast: torch.Tensor = (
        cached_casts.cast(value, dtype)
        if _is_cached(value, dtype)
        else _cast_to_dtype(value, dtype)
    )
    made.append(cast)
    return cast


def _is_cached(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    return (
        tensor.dtype == torch.float32
        and tensor.requires_grad
        and tensor.is_leaf
        and not tensor._is_view()
        and dtype == _get_dtype("cuda")
        and torch.is_autocast_cache_enabled()
        and not (torch.is_inference_mode_enabled() and casts_serve_training())
    )


def call_with_flat_casts(op: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run ``_cudnn_rnn`` on casts of its arguments: all weights are cast into a new flat buffer."""
    # As ``aten/src/ATen/cudnn/AutocastRNN.cpp`` does it at each call: to float16, whatever
    # autocast's dtype is, and within autograd.
    call = CudnnRNNCall(*args)
    sample = call.weights[0] if call.buffer is None else call.buffer
    if sample.dtype != _HALF and is_eligible(sample):
        buffer, weights = _flattened(call)
        args = (args[0], weights, args[2], buffer, *args[4:])
        del buffer, weights
    del call, sample
    return call_with_casts(op, _HALF, args, kwargs)


def _flattened(call: CudnnRNNCall) -> tuple[torch.Tensor, list[torch.Tensor]]:
    flat = call.weights[0].detach().new_zeros(call.network.numel(), dtype=_HALF)
    flat_views = views(flat, call.network.parts(call.weight_stride0))
    cast = []
    for view, weight in zip(flat_views, call.weights, strict=True):
        # A separate tensor that shares memory: autograd must see no views of one base.
        own = view if view.is_inference() else view.data
        cast.append(own.copy_(weight.view_as(own)))
    return flat, cast
