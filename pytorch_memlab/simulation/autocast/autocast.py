"""``torch.autocast("cuda")``: CUDA's lists of casts, for the tensors of simulated GPUs.

PyTorch's own ``autocast`` runs unchanged: it puts the thread's state where C++ keeps it. C++ asks
the autocast of CUDA for tensors of CUDA only, and sees none; so in each simulated thread every op
asks it, and its kernels are replaced by those here, which cast what lives on a simulated GPU.
They stand above autograd, as CUDA's do: a cast is a node of the graph, and an op inside a
composite one is cast like one that the program calls.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import torch

from ..._common.patches import Patches
from ..machine.machine import Machine
from ..machine.op_arguments import tensors_in
from ..ops.cuda_dispatch import cuda_dispatch_of
from .casts import (
    cache as cached_casts,
    call_with_casts,
    call_with_flat_casts,
    casts_serve_training,
    is_eligible,
    is_on_gpu,
    widest,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
OnGPU = Callable[[Args, Kwargs], Any]
"""Runs an op of which a tensor lives on a simulated GPU."""

_KEY: Final = torch._C.DispatchKey.AutocastCUDA
_THIS: Final = torch._C.DispatchKeySet(_KEY)
_WITH_HOST: Final = _THIS.add(torch._C.DispatchKey.AutocastCPU)
_exclude: Final = torch._C._ExcludeDispatchKeyGuard
_get_dtype = torch.get_autocast_dtype

LISTS: Final[Mapping[str, Any]] = tomllib.loads(
    Path(__file__).with_name("lists.toml").read_text(encoding="utf-8")
)
"""Names of the ops that ``torch.autocast("cuda")`` casts, by what it does with them."""

_installed: list[torch.library.Library] = []


def install(_machine: Machine, patches: Patches) -> None:
    """Put CUDA's lists in force in simulated threads.

    A simulation inside another finds them in force, and leaves them so.
    """
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
            library.impl(name, cuda_dispatch_of(_overload(name)))


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


@cache
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
        (name, _kernel(_overload(name), make(_overload(name))))
        for policy, make in policies.items()
        for name in LISTS[policy]
        # A build without CUDA has none for cuDNN's networks.
        if policy == "RECURRENT" or has_kernel(f"aten::{name}", "AutocastCUDA")
    ]


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _cast_to(choose: Callable[[Args, Kwargs], torch.dtype]) -> Callable[[Any], OnGPU]:
    """Runs an op on casts of its arguments to one dtype."""

    def make(op: Any) -> OnGPU:
        return lambda args, kwargs: call_with_casts(op, choose(args, kwargs), args, kwargs)

    return make


def _fp32_set_opt_dtype(op: Any) -> OnGPU:
    arguments = enumerate(op._schema.arguments)
    [(position, argument)] = [each for each in arguments if each[1].name == "dtype"]

    def set_dtype(args: Args, kwargs: Kwargs) -> Any:
        given = args[position] if len(args) > position else kwargs.get("dtype")
        if given is not None or not is_eligible(args[0]):
            return op(*args, **kwargs)
        if argument.kwarg_only or len(args) <= position:
            return op(*args, **{**kwargs, "dtype": torch.float32})
        return op(*args[:position], torch.float32, *args[position + 1 :], **kwargs)

    return set_dtype


def _fp32_append_dtype(op: Any) -> OnGPU:
    name = op._schema.name.removeprefix("aten::")
    with_dtype = _overload(LISTS["FP32_APPEND_DTYPE"][f"{name}.{op._schema.overload_name}"])
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
            if not any(is_on_gpu(tensor) for tensor in tensors_in(args, kwargs)):
                with _exclude(_THIS):
                    return op(*args, **kwargs)
            with _exclude(_WITH_HOST):
                return on_gpu(args, kwargs)

    return kernel
