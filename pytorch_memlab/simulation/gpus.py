"""Known GPUs, and GPUs of any size: what a simulated GPU says that it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final

from ..errors import UnknownGPUError
from .contexts import CONTEXT_MIB
from .sizes import parse_size

_KIB: Final = 1024
_MIB: Final = 1024**2
_GIB: Final = 1024**3


@dataclass(frozen=True, slots=True)
class GPU:
    """A GPU's properties, as ``torch.cuda.get_device_properties`` gives them.

    In ``PRESETS``, ``total_memory`` is one real reading of each GPU; drivers and ECC settings move
    it by up to some percent. It is exact to the byte, but to the MiB (rounded down) for the A10G,
    H200 and B200.

    Args:
        name: as ``torch.cuda.get_device_name`` gives it.
        total_memory: in bytes; less than the size on the box, as the driver keeps some.
        major: of the compute capability.
        minor: of the compute capability.
        multi_processor_count: number of streaming multiprocessors (SMs).
        l2_cache_size: in bytes.
        max_threads_per_multi_processor: threads that one SM holds at once.
        shared_memory_per_multiprocessor: in bytes.
        shared_memory_per_block: in bytes, without a kernel's opting in for more.
        context: bytes that CUDA's context takes, an estimate; 0 for a GPU that is but a size.
    """

    name: str
    total_memory: int
    major: int
    minor: int
    multi_processor_count: int
    l2_cache_size: int
    max_threads_per_multi_processor: int
    shared_memory_per_multiprocessor: int
    shared_memory_per_block: int = 48 * _KIB
    context: int = 0


# Threads and bytes of shared memory per SM, by compute capability: CUDA C++ Programming Guide,
# "Technical Specifications per Compute Capability".
_SM_LIMITS: Final[Mapping[tuple[int, int], tuple[int, int]]] = {
    (7, 0): (2048, 96 * _KIB),
    (7, 5): (1024, 64 * _KIB),
    (8, 0): (2048, 164 * _KIB),
    (8, 6): (1536, 100 * _KIB),
    (8, 9): (1536, 100 * _KIB),
    (9, 0): (2048, 228 * _KIB),
    (10, 0): (2048, 228 * _KIB),
    (12, 0): (1536, 100 * _KIB),
}


def _gpu(name: str, total_memory: int, capability: tuple[int, int], sms: int, l2: int) -> GPU:
    threads, shared = _SM_LIMITS[capability]
    return GPU(name, total_memory, *capability, sms, l2, threads, shared)


_READINGS: Final[dict[str, GPU]] = {
    # deviceQuery, CUDA 11.0 driver, 15110 MBytes: chiemon.github.io, post of 2024-12-25.
    "t4": _gpu("Tesla T4", 15843721216, (7, 5), 40, 4 * _MIB),
    # deviceQuery, CUDA 9.0 driver, ECC on, 16160 MBytes: a 2018 post on TensorFlow on an EC2
    # p3.2xlarge. Read since: 16144 MBytes (CUDA 12.4 driver).
    "v100": _gpu("Tesla V100-SXM2-16GB", 16945512448, (7, 0), 80, 6 * _MIB),
    # deviceQuery, CUDA 11.2 driver, ECC on, 32510 MBytes: infn-esc/esc21, parallelism/alpaka.md.
    "v100-32gb": _gpu("Tesla V100-SXM2-32GB", 34089730048, (7, 0), 80, 6 * _MIB),
    # To the MiB: torch 2.15.0.dev20260909+cu130 printed total_memory=22587MB,
    # multi_processor_count=80, L2_cache_size=6MB in a tutorial on decoding video on GPUs.
    # Older drivers: 22723MB.
    "a10g": _gpu("NVIDIA A10G", 22587 * _MIB, (8, 6), 80, 6 * _MIB),
    # deviceQuery, CUDA 12.0 driver, ECC on, 22518 MBytes: README of a median filter in CUDA.
    "l4": _gpu("NVIDIA L4", 23612293120, (8, 9), 58, 48 * _MIB),
    # CUDA 12.4 driver, ECC on, 45373 MBytes: README of the crate cuda-device-query.
    "l40s": _gpu("NVIDIA L40S", 47576711168, (8, 9), 142, 96 * _MIB),
    # deviceQuery, CUDA 11.8 driver, 24268 MBytes: catid's notes on building JAX.
    "rtx3090": _gpu("NVIDIA GeForce RTX 3090", 25447170048, (8, 6), 82, 6 * _MIB),
    # CUDA 13.0 driver, 24081 MBytes: README of GOCU, CUDA bindings for Go.
    "rtx4090": _gpu("NVIDIA GeForce RTX 4090", 25250627584, (8, 9), 128, 72 * _MIB),
    # deviceQuery, CUDA 12.8 driver, 32120 MBytes: NVIDIA/nccl#1637.
    # PyTorch's "total capacity of 31.37 GiB": Wan-Video/Wan2.1#465.
    "rtx5090": _gpu("NVIDIA GeForce RTX 5090", 33680457728, (12, 0), 170, 96 * _MIB),
    # deviceQuery, CUDA 12.2 driver, ECC on, 81051 MBytes: notes on a server of 8 A100s.
    # Others read 81158 (CUDA 12.5 driver) and 81251 MBytes.
    "a100": _gpu("NVIDIA A100-SXM4-80GB", 84987740160, (8, 0), 108, 40 * _MIB),
    # deviceQuery, CUDA 12.2 driver, ECC on, 40339 MBytes: bottlerocket-os/bottlerocket#3873.
    "a100-40gb": _gpu("NVIDIA A100-SXM4-40GB", 42298834944, (8, 0), 108, 40 * _MIB),
    # deviceQuery, CUDA 12.8 driver, 81090 MBytes: notes on NVIDIA's cuda-sample container with
    # podman. torch prints total_memory=81090MB, multi_processor_count=132, L2_cache_size=50MB.
    "h100": _gpu("NVIDIA H100 80GB HBM3", 85028896768, (9, 0), 132, 50 * _MIB),
    # To the MiB: torch printed total_memory=143156MB, multi_processor_count=132,
    # L2_cache_size=60MB, in a script for Modal's GPUs.
    "h200": _gpu("NVIDIA H200", 143156 * _MIB, (9, 0), 132, 60 * _MIB),
    # To the MiB: torch 2.8.0+cu128 printed total_memory=182631MB, multi_processor_count=148,
    # L2_cache_size=126MB, in a benchmark's log; 178.35 GB and an L2 of 126.50 MB: pytorch/ao#4002.
    "b200": _gpu("NVIDIA B200", 182631 * _MIB, (10, 0), 148, 253 * _MIB // 2),
}

PRESETS: Final[dict[str, GPU]] = {
    name: replace(gpu, context=CONTEXT_MIB[name] * _MIB) for name, gpu in _READINGS.items()
}

_ALIASES: Final[Mapping[str, str]] = {
    "t4-16gb": "t4",
    "v100-16gb": "v100",
    "v100-sxm2": "v100",
    "a10g-24gb": "a10g",
    "l4-24gb": "l4",
    "l40s-48gb": "l40s",
    "3090": "rtx3090",
    "rtx3090-24gb": "rtx3090",
    "4090": "rtx4090",
    "rtx4090-24gb": "rtx4090",
    "5090": "rtx5090",
    "rtx5090-32gb": "rtx5090",
    "a100-80gb": "a100",
    "a100-sxm4": "a100",
    "h100-80gb": "h100",
    "h100-sxm": "h100",
    "h100-sxm5": "h100",
    "h200-141gb": "h200",
}

# Nothing can be allocated below PyTorch's smallest segment, or beyond the 47 bits of address space
# that CUDA's unified addressing shares with the host.
_SMALLEST: Final = 2 * _MIB
_LARGEST: Final = 2**47


def find_gpu(spec: str | int) -> GPU:
    """The GPU that a name or a size stands for.

    Args:
        spec: a name of ``PRESETS``, in any case, with or without blanks, dashes and NVIDIA's
            "GeForce" or "Tesla", or the name that ``torch.cuda.get_device_name`` gives; or a size:
            bytes as an int, or a text that ``parse_size`` takes.

    Returns:
        The preset; or, for a size, a GPU with just that many bytes, all of them for PyTorch, and an
        A100's other properties, such as compute capability 8.0 and 108 SMs.

    Raises:
        UnknownGPUError: no such name, or a size under 2 MiB or over 128 TiB.

    >>> find_gpu("NVIDIA RTX 4090").name
    'NVIDIA GeForce RTX 4090'
    >>> find_gpu("A100 40GB") is PRESETS["a100-40gb"]
    True
    >>> find_gpu("24GiB").name, find_gpu("24GiB").total_memory
    ('Simulated GPU (24.00 GiB)', 25769803776)
    >>> find_gpu("24GB").total_memory
    24000000000
    >>> find_gpu("h10")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    pytorch_memlab.errors.UnknownGPUError: unknown GPU 'h10' (did you mean h100?). Give one of ...
    """
    if isinstance(spec, bool) or not isinstance(spec, (str, int)):
        raise _unknown_gpu(f"a GPU is a name or a size, not {_quoted(spec)}")
    if isinstance(spec, int):
        return _sized(spec, spec)
    short_name = _SHORT_NAMES.get(_canonical(spec))
    if short_name is not None:
        return PRESETS[short_name]
    size = parse_size(spec)
    if size is None:
        raise _unknown_gpu(f"unknown GPU {_quoted(spec)}{_suggestion(spec)}")
    return _sized(size, spec)


def _canonical(name: str) -> str:
    """A name without what people spell differently; a leading dash stays, it may be a minus."""
    words = re.sub(r"(?<=[a-z0-9])[\s_-]+", "", name.strip().casefold())
    return re.sub(r"^(?:nvidia|geforce|tesla)+", "", words)


_SHORT_NAMES: Final[Mapping[str, str]] = {
    _canonical(spelling): short_name
    for spelling, short_name in (
        *((short_name, short_name) for short_name in PRESETS),
        *((gpu.name, short_name) for short_name, gpu in PRESETS.items()),
        *_ALIASES.items(),
    )
}


def _sized(size: int, spec: str | int) -> GPU:
    if not _SMALLEST <= size <= _LARGEST:
        raise _unknown_gpu(f"a GPU has 2 MiB to 128 TiB of memory, not {_quoted(spec)}")
    readable = f"{size / _GIB:.2f} GiB" if size >= _GIB else f"{size / _MIB:.2f} MiB"
    a100 = PRESETS["a100"]
    return _gpu(
        f"Simulated GPU ({readable})",
        size,
        (a100.major, a100.minor),
        a100.multi_processor_count,
        a100.l2_cache_size,
    )


def _suggestion(name: str) -> str:
    close = get_close_matches(_canonical(name), _SHORT_NAMES, n=3, cutoff=0.65)
    near = dict.fromkeys(_SHORT_NAMES[spelling] for spelling in close)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def _quoted(spec: object) -> str:
    if isinstance(spec, int) and spec.bit_length() > 64:  # Python refuses to print the longest ones
        return f"an int of {spec.bit_length()} bits"
    return " ".join(repr(spec).split())


def _unknown_gpu(problem: str) -> UnknownGPUError:
    return UnknownGPUError(
        f"{problem}. Give one of {', '.join(PRESETS)}; "
        "or a size such as '24GiB', '24GB' (24 * 10**9 bytes) or 25769803776 (bytes)"
    )
