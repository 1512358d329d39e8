"""``torch.jit.save`` and ``torch.jit.load`` in a dry run; see Note [Files without values]."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from typing import Any

import torch

from ...._common.patches import Patches
from ...machine.kept_files import MARK, KeptFiles
from ...machine.tensor_values import TensorValues
from .opened_files import parent_exists
from .serialization import write_marked

_jit: Any = torch.jit
_Module = _jit.RecursiveScriptModule
_EXTRA = MARK.decode()


def install(values: TensorValues, kept: KeptFiles, patches: Patches) -> None:
    """Keep tensors without values out of what TorchScript writes."""

    def names(module: Any) -> list[str]:
        tensors = module.state_dict(keep_vars=True).items()
        return [name for name, tensor in tensors if values.lacks_values(tensor)]

    def marked(module: Any, kwargs: dict[str, Any]) -> bytes:
        files = {**(kwargs.pop("_extra_files", None) or {}), _EXTRA: json.dumps(names(module))}
        data: bytes = module._c.save_to_buffer(_extra_files=files, **kwargs)
        return data

    def save(self: Any, f: Any, **kwargs: Any) -> Any:
        path = os.fspath(f)
        if not names(self):
            result = self._c.save(str(path), **kwargs)
            kept.drop(path)
            return result
        if not parent_exists(path):
            raise RuntimeError(f"Parent directory {os.path.dirname(path)} does not exist.")
        copy = kept.new_copy()
        with open(copy, "r+b") as file:
            file.write(marked(self, kwargs))
        kept.keep(path, copy)
        return None

    def save_to_buffer(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not names(self):
            return self._c.save_to_buffer(*args, **kwargs)
        return marked(self, kwargs)

    @patches.around(_jit, "save")
    def save_any(jit_save: Callable[..., Any], m: Any, f: Any, _extra_files: Any = None) -> None:
        if isinstance(f, (str, os.PathLike)) or not isinstance(m, _Module) or not names(m):
            jit_save(m, f, _extra_files=_extra_files)
        else:
            write_marked(f, marked(m, {"_extra_files": _extra_files}), kept)

    @patches.around(_jit, "load")
    def load(
        jit_load: Callable[..., Any],
        f: Any,
        map_location: Any = None,
        _extra_files: Any = None,
        **kwargs: Any,
    ) -> Any:
        copy = kept.copy_of(f)
        if copy is None and not hasattr(f, "read"):
            return jit_load(f, map_location, _extra_files, **kwargs)
        if copy is None:
            data = f.read()
        else:
            with open(copy, "rb") as file:
                data = file.read()
        extra = {} if _extra_files is None else _extra_files
        if MARK not in data:
            return jit_load(io.BytesIO(data), map_location, _extra_files, **kwargs)
        extra[_EXTRA] = ""
        module = jit_load(io.BytesIO(data), map_location, extra, **kwargs)
        lacking = set(json.loads(extra.pop(_EXTRA)))
        for name, tensor in module.state_dict(keep_vars=True).items():
            if name in lacking:
                values.forget_values(tensor)
        return module

    patches.set(_Module, "save", save)
    patches.set(_Module, "save_to_buffer", save_to_buffer)
    patches.set_all(_jit._serialization, {"save": _jit.save, "load": _jit.load})
