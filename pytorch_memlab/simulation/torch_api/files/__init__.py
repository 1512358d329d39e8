"""What a dry run would write is kept from files until the run ends; Note [Files without values]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...machine.kept_files import KeptFiles
from ..after_import import AfterImport

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...._common.patches import Patches
    from ...machine.machine import Machine


def install(machine: Machine, patches: Patches) -> Callable[[], None]:
    """Keep tensors without values out of files, until the patches are undone.

    Returns:
        What forgets the files that were not written.
    """
    from . import (
        distributed_checkpoints,
        jit_serialization,
        numpy_arrays,
        opened_files,
        safetensors_files,
        serialization,
    )

    values = machine.values
    assert values is not None
    kept = machine.kept_files = KeptFiles()
    imports = AfterImport()
    opened_files.install(kept, imports, patches)
    numpy_arrays.install(values, kept, patches)
    serialization.install(values, kept, patches)
    jit_serialization.install(values, kept, patches)
    safetensors_files.install(values, kept, imports, patches)
    distributed_checkpoints.install(values, kept, imports, patches)
    imports.start()

    def end() -> None:
        imports.stop()
        kept.close()

    return end
