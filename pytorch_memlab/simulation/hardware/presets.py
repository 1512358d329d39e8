"""Known GPUs, GPUs of any size, and GPUs that a TOML file describes."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from statistics import median
from typing import Any, Final

from ..._common.text.quoted import quoted
from ...errors import UnknownGPUError, UsageError
from .gpu import GPU, checked_memory
from .sizes import parse_size

_KIB: Final = 1024
_MIB: Final = 1024**2
_GIB: Final = 1024**3

_ABOUT: Final = frozenset({"source", "context_messages", "context_source", "aliases"})
"""Keys of ``presets.toml`` that are not arguments of ``GPU``."""

_FILE: Final = Path(__file__).with_name("presets.toml")
_TABLES: Final[Mapping[str, Mapping[str, Any]]] = tomllib.loads(_FILE.read_text(encoding="utf-8"))


def context_of_messages(messages: Iterable[Sequence[float]]) -> int:
    """Bytes that a CUDA context takes, from out-of-memory messages.

    >>> context_of_messages([(14.52, 14.06, 330.42), (4.11, 3.72, 264.21)]) // 2**20
    138
    """
    sizes = ((held - allocated) * _KIB - reserved for held, allocated, reserved in messages)
    return round(median(sizes)) * _MIB


def _contexts() -> dict[str, int]:
    """Bytes of the context of each preset: from messages of that GPU or of related ones."""
    sizes = {
        name: context_of_messages(table["context_messages"])
        for name, table in _TABLES.items()
        if "context_messages" in table
    }

    def relatives(name: str) -> list[int]:
        capability = _TABLES[name]["compute_capability"]
        for digits in (2, 1):
            same = [
                size
                for other, size in sizes.items()
                if _TABLES[other]["compute_capability"][:digits] == capability[:digits]
            ]
            if same:
                return same
        return list(sizes.values())

    return {
        name: sizes[name] if name in sizes else int(median(relatives(name))) for name in _TABLES
    }


def _presets() -> dict[str, GPU]:
    contexts = _contexts()
    return {
        name: GPU(
            **{key: value for key, value in table.items() if key not in _ABOUT},
            context=contexts[name],
        )
        for name, table in _TABLES.items()
    }


PRESETS: Final[Mapping[str, GPU]] = _presets()


def find_gpu(spec: str | int | GPU) -> GPU:
    """The GPU that a name, a size, a file or a description stands for.

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
    pytorch_memlab.errors.UnknownGPUError: unknown GPU 'h10' (did you mean h100 or a10?). ...
    """
    # ``spec`` is
    #
    # * a name of ``PRESETS``, in any case, with or without blanks, dashes and NVIDIA's "GeForce" or
    #   "Tesla"; or the name that ``torch.cuda.get_device_name`` gives;
    # * a size: bytes as an int, or a text that ``parse_size`` takes;
    # * the path of a TOML file, which ends in ``.toml``: its keys are the arguments of ``GPU``;
    # * a ``GPU``.
    #
    # For a size, the GPU has just that many bytes, all of them for PyTorch, and an A100's other
    # properties, such as compute capability 8.0 and 108 SMs.
    #
    # Raises UnknownGPUError if there is no such name or file, and for a size under 2 MiB or over
    # 128 TiB. Raises UsageError for a file that does not describe a GPU.
    if isinstance(spec, GPU):
        return spec
    if isinstance(spec, bool) or not isinstance(spec, (str, int)):
        raise _unknown_gpu(f"a GPU is a name, a size, a GPU(...) or a file, not {quoted(spec)}")
    if isinstance(spec, int):
        return _sized(spec, spec)
    short_name = _SHORT_NAMES.get(_canonical(spec))
    if short_name is not None:
        return PRESETS[short_name]
    if spec.strip().endswith(".toml"):
        return read_gpu(spec.strip())
    size = parse_size(spec)
    if size is None:
        raise _unknown_gpu(f"unknown GPU {quoted(spec)}{_suggestion(spec)}")
    return _sized(size, spec)


def read_gpu(path: str | Path) -> GPU:
    """The GPU that a TOML file describes."""
    # The keys of the file are the arguments of ``GPU``: ``name``, ``memory``,
    # ``compute_capability``, ``multiprocessors`` and the optional ones. Raises UnknownGPUError for
    # a file that cannot be read, and UsageError for one that is not TOML or does not describe a
    # GPU; the message names the key.
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnknownGPUError(f"cannot read the GPU's file {path}: {_reason(error)}") from None
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not a TOML file: {error}") from None
    parameters = inspect.signature(GPU).parameters
    for key in table:
        if key not in parameters:
            near = get_close_matches(key, parameters, n=1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise UsageError(
                f"{path}: a GPU has no {key!r}{meant}. Its keys are {', '.join(parameters)}"
            )
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty and name not in table
    ]
    if missing:
        raise UsageError(f"{path}: the GPU's {' and '.join(missing)} must be given")
    try:
        return GPU(**table)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _canonical(name: str) -> str:
    """A name without what people spell differently; a leading dash stays, it may be a minus."""
    words = re.sub(r"(?<=[a-z0-9])[\s_-]+", "", name.strip().casefold())
    return re.sub(r"^(?:nvidia|geforce|tesla)+", "", words)


# Two presets may have one full name (the RTX 4060 Ti has 8 or 16 GB): the first is meant.
_SHORT_NAMES: Final[Mapping[str, str]] = {
    _canonical(spelling): short_name
    for short_name, table in reversed(list(_TABLES.items()))
    for spelling in (*table["aliases"], table["name"], short_name)
}


def _sized(size: int, spec: str | int) -> GPU:
    checked_memory(size, spec)
    readable = f"{size / _GIB:.2f} GiB" if size >= _GIB else f"{size / _MIB:.2f} MiB"
    a100 = PRESETS["a100"]
    return GPU(
        f"Simulated GPU ({readable})",
        size,
        (a100.major, a100.minor),
        a100.multi_processor_count,
        l2_cache=a100.l2_cache_size,
    )


def _suggestion(name: str) -> str:
    if name.strip().lower() == "mps":
        return " (GPUs of Apple are not simulated)"
    close = get_close_matches(_canonical(name), _SHORT_NAMES, n=3, cutoff=0.65)
    near = dict.fromkeys(_SHORT_NAMES[spelling] for spelling in close)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def _unknown_gpu(problem: str) -> UnknownGPUError:
    return UnknownGPUError(
        f"{problem}. Give its memory, such as 12GiB (--gpu 12GiB, %simulate 12GiB); or describe it "
        f"in a TOML file (--gpu my_gpu.toml) or as GPU(...); or take one of {', '.join(PRESETS)}"
    )
