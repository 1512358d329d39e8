"""Libraries that write files, in a dry run; Note [Overlay]."""

from __future__ import annotations

from ...._common.patching.after_import import AfterImport
from ...._common.patching.patches import Patches
from ...dry_run.files.overlay import Overlay
from ...machine.machine import Machine
from ...machine.tensor_values import TensorValues
from . import c_libraries, numpy_arrays, safetensors_files, serialization


def install(machine: Machine, patches: Patches) -> None:
    values, kept = machine.values, machine.kept_files
    if not isinstance(kept, Overlay):
        return
    values = values or TensorValues()  # of a run that computes, none is missing
    imports = AfterImport()
    c_libraries.install(values, kept, imports, patches)
    numpy_arrays.install(values, kept, patches)
    serialization.install(values, kept, imports, patches)
    safetensors_files.install(values, kept, imports, patches)
    imports.start()
    patches.before_undo(imports.stop)
