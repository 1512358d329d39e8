"""``torch.distributed.checkpoint`` in a dry run.

A checkpoint is a folder: where one tensor has no values, no file of it is written, also not the
one that describes the others. See Note [Files without values].
"""

from __future__ import annotations

from typing import Any

import torch

from ...._common.patches import Patches
from ...machine.kept_files import KeptFiles
from ...machine.tensor_values import TensorValues
from ..after_import import AfterImport


def install(values: TensorValues, kept: KeptFiles, imports: AfterImport, patches: Patches) -> None:
    """Keep checkpoints with tensors without values from being written."""

    def patch(filesystem: Any) -> None:
        writer = getattr(filesystem, "_FileSystemWriter", None) or filesystem.FileSystemWriter
        write_data = writer.write_data

        def write(self: Any, plan: Any, planner: Any) -> Any:
            for item in plan.items:
                data = planner.resolve_data(item) if item.tensor_data is not None else None
                if isinstance(data, torch.Tensor) and values.lacks_values(data):
                    kept.keep_folder(self.path)
                    break
            return write_data(self, plan, planner)

        patches.set(writer, "write_data", write)

    imports.call("torch.distributed.checkpoint.filesystem", patch)
