"""A dry run writes no placeholder values to files; Note [Files without values]."""

from __future__ import annotations

from ...._common.after_import import AfterImport
from ...._common.patches import Patches
from ...machine.machine import Machine
from . import numpy_arrays, opened_files, safetensors_files, serialization


def install(machine: Machine, patches: Patches) -> None:
    values, kept = machine.values, machine.kept_files
    if values is None or kept is None:
        return
    imports = AfterImport()
    opened_files.install(kept, imports, patches)
    numpy_arrays.install(values, kept, patches)
    serialization.install(values, kept, imports, patches)
    safetensors_files.install(values, kept, imports, patches)
    imports.start()
    patches.before_undo(kept.close)
    patches.before_undo(imports.stop)
