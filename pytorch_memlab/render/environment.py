"""A process and its machine, as the report of a fault needs them."""

from __future__ import annotations

import os
import platform
import sys
import threading
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any, Final

from .._common.text.quoted import visible

_PACKAGES: Final = ("pytorch_memlab", "torch", "triton", "numpy", "pandas", "rich", "IPython")
_VARIABLES: Final = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUBLAS_WORKSPACE_CONFIG",
    "PYTORCH_MEMLAB",
)
_MOST_NAMES: Final = 3
"""How many replaced functions of a module are named."""

_TOOLS: Final = 6
"""How many tools ``sys.monitoring`` has room for."""


def debug_info() -> str:
    """Describe this process and its machine, for the report of a fault.

    Returns:
        Versions, GPUs and their driver, the environment variables that decide how memory is
        allocated, what is patched, and what traces. No paths, arguments or names of the program.
    """
    rows = [
        *_versions(),
        ("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        *_gpus(),
        *_settings(),
        ("traced by", ", ".join(_tracers()) or "nothing"),
        ("patched", ", ".join(_patched()) or "nothing"),
    ]
    width = max(len(name) for name, _ in rows) + 2
    return "".join(f"{name:{width}}{visible(value)}\n" for name, value in rows)


def _versions() -> Iterator[tuple[str, str]]:
    for package in _PACKAGES:
        yield package, _version(package)


def _version(package: str) -> str:
    if package == "torch":
        try:
            from torch import __version__ as whole
        except ImportError:
            return "not installed"
        return str(whole)
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _gpus() -> Iterator[tuple[str, str]]:
    try:
        import torch
    except ImportError:
        return
    cuda, rocm = torch.version.cuda, torch.version.hip
    build = f"CUDA {cuda}" if cuda else f"ROCm {rocm}" if rocm else "the CPU"
    yield "torch is built for", build
    if torch.backends.cudnn.is_available():
        yield "cuDNN", str(torch.backends.cudnn.version())
    if not rocm:
        yield "driver", _driver()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        is_available = torch.cuda.is_available()
    if not is_available:
        reason = f" that PyTorch can use ({_first_line(caught[0].message)})" if caught else ""
        yield "GPU", f"none{reason}: the simulation is used"
        return
    from ..simulation.inspect import active

    simulated = "simulated " if active.machine is not None else ""
    for index in range(torch.cuda.device_count()):
        try:
            properties = torch.cuda.get_device_properties(index)
        except Exception as error:  # of the driver, also one of an earlier call
            yield f"cuda:{index}", f"not known: {_first_line(error)}"
            continue
        memory = f"{properties.total_memory:,} bytes"
        capability = f"compute capability {properties.major}.{properties.minor}"
        processors = f"{properties.multi_processor_count} multiprocessors"
        name = f"{simulated}{properties.name}"
        yield f"cuda:{index}", f"{name}, {memory}, {capability}, {processors}"


def _driver() -> str:
    try:
        import pynvml
    except ImportError:
        return "not known: nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
        try:
            return _text(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return f"not known: {error}"


def _text(text: str | bytes) -> str:
    """An answer of NVML; older packages give bytes."""
    return text.decode() if isinstance(text, bytes) else text


def _first_line(message: object) -> str:
    return str(message).partition("\n")[0]


def _settings() -> Iterator[tuple[str, str]]:
    for name in _VARIABLES:
        if name in os.environ:
            yield name, os.environ[name]


def _tracers() -> Iterator[str]:
    functions = (sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile())
    for name, function in zip(
        ("sys.settrace", "sys.setprofile", "threading.settrace", "threading.setprofile"),
        functions,
        strict=True,
    ):
        if function is not None:
            yield f"{name} of {_module_of(function)}"
    monitoring: Any = getattr(sys, "monitoring", None)
    for tool in range(_TOOLS) if monitoring is not None else ():
        name = monitoring.get_tool(tool)
        if name is not None:
            yield f"sys.monitoring tool {tool}, {name}"


def _patched() -> Iterator[str]:
    """Functions of torch that another package has replaced, and its hooks."""
    torch = sys.modules.get("torch")
    if torch is not None:
        for module in (torch, torch.cuda, torch.cuda.memory, torch.autograd, torch.Tensor):
            yield from _replaced(module)
    if sys.excepthook is not sys.__excepthook__:
        yield f"sys.excepthook by {_module_of(sys.excepthook)}"


def _replaced(owner: ModuleType | type) -> Iterator[str]:
    name = owner.__name__ if isinstance(owner, ModuleType) else "torch.Tensor"
    replaced = [
        f"{name}.{attribute}"
        for attribute, value in sorted(vars(owner).items())
        if callable(value) and str(getattr(value, "__module__", "")).startswith("pytorch_memlab")
    ]
    yield from replaced[:_MOST_NAMES]
    if len(replaced) > _MOST_NAMES:
        yield f"{len(replaced) - _MOST_NAMES} more of {name}"


def _module_of(function: Any) -> str:
    function = getattr(function, "func", function)  # of a partial
    return str(getattr(function, "__module__", None) or type(function).__module__)
