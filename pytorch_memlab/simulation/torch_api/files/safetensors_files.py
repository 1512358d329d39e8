"""safetensors in a dry run; see Note [Files without values]."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from typing_extensions import Self

from ...._common.patches import Patches
from ...machine.kept_files import MARK, KeptFiles
from ...machine.tensor_values import TensorValues
from ..after_import import AfterImport
from .opened_files import is_marked


class _Flat(dict[str, Any]):
    """The buffers that the library makes before it writes, with their tensors."""

    tensors: dict[str, torch.Tensor]


def install(values: TensorValues, kept: KeptFiles, imports: AfterImport, patches: Patches) -> None:
    """Keep tensors and arrays without values out of safetensors' files."""

    def lacks_values(value: Any) -> bool:
        return values.lacks_values(value) if isinstance(value, torch.Tensor) else is_marked(value)

    def write_archive(tensors: dict[str, Any], filename: Any, metadata: Any) -> None:
        with open(filename, "wb") as file:
            file.write(_archive(tensors, metadata, values))

    def flattened(flatten: Callable[..., Any]) -> Callable[..., Any]:
        def flat(tensors: dict[str, Any], *args: Any) -> Any:
            found = flatten(tensors, *args)
            if not any(map(lacks_values, tensors.values())):
                return found
            made = _Flat(found)
            made.tensors = tensors
            return made

        return flat

    def serialized(write: Callable[..., Any]) -> Callable[..., Any]:
        def serialize(flat: Any, metadata: Any = None) -> Any:
            if isinstance(flat, _Flat):
                return _archive(flat.tensors, metadata, values)
            return write(flat, metadata=metadata)

        return serialize

    def serialized_to(write: Callable[..., Any]) -> Callable[..., Any]:
        def serialize_file(flat: Any, filename: Any, metadata: Any = None) -> None:
            if isinstance(flat, _Flat):
                write_archive(flat.tensors, filename, metadata)
            else:
                write(flat, filename, metadata=metadata)
                kept.drop(filename)

        return serialize_file

    def saver(save_file: Callable[..., Any]) -> Callable[..., Any]:
        """For releases that flatten arrays within ``save_file`` itself."""

        def save(tensors: Any, filename: Any, metadata: Any = None) -> None:
            lacking = any(map(lacks_values, tensors.values()))
            (write_archive if lacking else save_file)(tensors, filename, metadata)

        return save

    def loader(load: Callable[[bytes], Any], convert: Callable[[Any], Any]) -> Any:
        def loaded(data: bytes) -> Any:
            if MARK not in data:
                return load(data)
            return {name: convert(tensor) for name, tensor in _content(data)["tensors"].items()}

        return loaded

    def patch(convert: Callable[[Any], Any], module: Any) -> None:
        names = [name for name in ("_flatten_as_ptr", "_flatten") if hasattr(module, name)]
        for name in names:
            patches.set(module, name, flattened(getattr(module, name)))
        if not names:
            patches.set(module, "save_file", saver(module.save_file))
        patches.set(module, "serialize", serialized(module.serialize))
        patches.set(module, "serialize_file", serialized_to(module.serialize_file))
        patches.set(module, "load", loader(module.load, convert))
        patch_package(module)

    def patch_package(module: Any) -> None:
        patches.set(module, "safe_open", _opener(kept, module.safe_open))

    imports.call("safetensors.torch", partial(patch, lambda tensor: tensor))
    imports.call("safetensors.numpy", partial(patch, torch.Tensor.numpy))
    imports.call("safetensors", patch_package)


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


def _opener(kept: KeptFiles, safe_open: Callable[..., Any]) -> Callable[..., Any]:
    def opened(
        filename: Any, framework: str = "pt", device: Any = "cpu", *args: Any, **kwargs: Any
    ) -> Any:
        copy = kept.copy_of(filename)
        if copy is None:
            return safe_open(filename, framework, device, *args, **kwargs)
        return _KeptTensors(copy, framework, device)

    return opened


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
        """Names of the tensors, in order."""
        return sorted(self._tensors)

    offset_keys = keys

    def metadata(self) -> dict[str, str] | None:
        """The texts that were saved with them."""
        return self._metadata

    def get_tensor(self, name: str) -> Any:
        """One of them."""
        tensor = self._tensors[name]
        return tensor.numpy() if self._is_numpy else tensor.to(self._device)

    def get_tensors(self) -> dict[str, Any]:
        """All of them."""
        return {name: self.get_tensor(name) for name in self.keys()}

    def get_slice(self, name: str) -> _KeptSlice:
        """One of them, of which parts can be read."""
        return _KeptSlice(self._tensors[name], partial(self.get_tensor, name))


class _KeptSlice:
    """A tensor of such a file, of which parts can be read."""

    def __init__(self, tensor: torch.Tensor, get: Callable[[], Any]) -> None:
        self._tensor = tensor
        self._get = get

    def get_shape(self) -> list[int]:
        """Its size."""
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """The format's name of its type."""
        types: dict[str, torch.dtype] = import_module("safetensors.torch")._TYPES
        return next(name for name, dtype in types.items() if dtype == self._tensor.dtype)

    def __getitem__(self, index: Any) -> Any:
        return self._get()[index]
