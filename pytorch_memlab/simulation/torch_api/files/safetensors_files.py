"""safetensors in a dry run; see Note [Files without values]."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from ...._common.patching.after_import import AfterImport
from ...._common.patching.patches import Patches
from ...._common.process.real_files import on_disk
from ...dry_run.files.marks import MARK, is_marked
from ...dry_run.files.overlay import Overlay
from ...machine.tensor_values import TensorValues
from .numpy_arrays import lacks_values


class _Flat(dict[str, Any]):
    """The buffers that the library makes before it writes, with their tensors."""

    tensors: dict[str, torch.Tensor]


def install(values: TensorValues, kept: Overlay, imports: AfterImport, patches: Patches) -> None:
    def install_functions(convert: Callable[[Any], Any], module: Any) -> None:
        _install_writing_to_memory(values, patches, module)
        _install_writing_to_files(values, kept, patches, module)
        _install_loading(convert, patches, module)

    imports.call("safetensors", partial(_install_opening, kept, patches))
    imports.call("safetensors.torch", partial(install_functions, lambda tensor: tensor))
    imports.call("safetensors.numpy", partial(install_functions, torch.Tensor.numpy))


def _install_opening(kept: Overlay, patches: Patches, module: Any) -> None:
    safe_open = module.safe_open

    @wraps(safe_open)
    def opened(
        filename: Any, framework: str = "pt", device: Any = "cpu", *args: Any, **kwargs: Any
    ) -> Any:
        path = kept.to_read(filename)
        if path is filename or not kept.is_marked_file(path):
            return safe_open(path, framework, device, *args, **kwargs)
        return _KeptTensors(path, framework, device)

    patches.set_by_name((safe_open, opened))  # libraries hold it under its name


def _install_writing_to_memory(values: TensorValues, patches: Patches, module: Any) -> None:
    @patches.around(module, *_flattening(module))
    def flat(flatten: Callable[..., Any], tensors: dict[str, Any], *args: Any) -> Any:
        flattened = flatten(tensors, *args)
        if not any(lacks_values(values, tensor) for tensor in tensors.values()):
            return flattened
        made = _Flat(flattened)
        made.tensors = tensors
        return made

    @patches.around(module, "serialize")
    def serialize(write: Callable[..., Any], flat: Any, metadata: Any = None) -> Any:
        if isinstance(flat, _Flat):
            return _archive(flat.tensors, metadata, values)
        return write(flat, metadata=metadata)


def _flattening(module: Any) -> list[str]:
    return [name for name in ("_flatten_as_ptr", "_flatten") if hasattr(module, name)]


def _install_writing_to_files(
    values: TensorValues, kept: Overlay, patches: Patches, module: Any
) -> None:
    def write_archive(tensors: dict[str, Any], filename: Any, metadata: Any) -> None:
        data = _archive(tensors, metadata, values)
        with kept.written(filename, lacks_values=True) as target, on_disk():
            Path(target).write_bytes(data)

    # Older releases flatten arrays within ``save_file`` itself.
    @patches.around(module, *([] if _flattening(module) else ["save_file"]))
    def save(
        save_file: Callable[..., Any], tensors: Any, filename: Any, metadata: Any = None
    ) -> None:
        if any(lacks_values(values, tensor) for tensor in tensors.values()):
            write_archive(tensors, filename, metadata)
            return
        with kept.written(filename) as target:
            save_file(tensors, target, metadata)

    @patches.around(module, "serialize_file")
    def serialize_file(
        write: Callable[..., Any], flat: Any, filename: Any, metadata: Any = None
    ) -> None:
        if isinstance(flat, _Flat):
            write_archive(flat.tensors, filename, metadata)
        else:
            with kept.written(filename) as target:
                write(flat, target, metadata=metadata)


def _install_loading(convert: Callable[[Any], Any], patches: Patches, module: Any) -> None:
    @patches.around(module, "load")
    def load(load: Callable[[bytes], Any], data: bytes) -> Any:
        if MARK not in data:
            return load(data)
        return {name: convert(tensor) for name, tensor in _content(data)["tensors"].items()}


def _archive(
    tensors: dict[str, Any], metadata: dict[str, str] | None, values: TensorValues
) -> bytes:
    buffer = io.BytesIO()
    on_host = {name: _on_host(value, values) for name, value in tensors.items()}
    torch.save({"tensors": on_host, "metadata": metadata}, buffer)
    return buffer.getvalue()


def _on_host(value: Any, values: TensorValues) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    tensor = torch.from_numpy(np.asarray(value))
    if is_marked(value):
        values.forget_values(tensor)
    return tensor


def _content(data: Any) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(io.BytesIO(data), weights_only=True)
    return content


class _KeptTensors:
    """A file of safetensors, opened, that was not written."""

    def __init__(self, copy: str, framework: str, device: Any) -> None:
        with open(copy, "rb") as file:
            content = _content(file.read())
        self._tensors: dict[str, torch.Tensor] = content["tensors"]
        self._metadata: dict[str, str] | None = content["metadata"]
        self._is_numpy = framework in ("np", "numpy")
        self._device = device

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is open."""

    def keys(self) -> list[str]:
        return sorted(self._tensors)

    offset_keys = keys

    def metadata(self) -> dict[str, str] | None:
        return self._metadata

    def get_tensor(self, name: str) -> Any:
        tensor = self._tensors[name]
        return tensor.numpy() if self._is_numpy else tensor.to(self._device)

    def get_tensors(self) -> dict[str, Any]:
        return {name: self.get_tensor(name) for name in self.keys()}

    def get_slice(self, name: str) -> _KeptSlice:
        return _KeptSlice(self._tensors[name], partial(self.get_tensor, name))


class _KeptSlice:
    """A tensor of such a file, of which parts can be read."""

    def __init__(self, tensor: torch.Tensor, get: Callable[[], Any]) -> None:
        self._tensor = tensor
        self._get = get

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        types: dict[str, torch.dtype] = import_module("safetensors.torch")._TYPES
        return next(name for name, dtype in types.items() if dtype == self._tensor.dtype)

    def __getitem__(self, index: Any) -> Any:
        return self._get()[index]
