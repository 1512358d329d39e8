"""A run without values writes none: what it would have written is kept until the run ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..._common.patches import Patches
    from ..machine.machine import Machine


def install(machine: Machine, patches: Patches) -> Callable[[], None]:
    """Keep tensors without values out of files, until the patches are undone.

    Args:
        machine: the simulated machine, whose ops do not compute.
        patches: puts the originals back.

    Returns:
        What forgets the files that were not written.
    """
    from . import (
        arrays,
        distributed_checkpoints,
        files,
        safetensors_files,
        torch_saving,
        torchscript_files,
    )
    from .after_import import AfterImport
    from .kept_files import KeptFiles

    shapes = machine.shapes
    assert shapes is not None
    kept = machine.kept_files = KeptFiles()
    imports = AfterImport()
    files.install(kept, imports, patches)
    arrays.install(shapes, kept, patches)
    torch_saving.install(shapes, kept, patches)
    torchscript_files.install(shapes, kept, patches)
    safetensors_files.install(shapes, kept, imports, patches)
    distributed_checkpoints.install(shapes, kept, imports, patches)
    imports.start()

    def end() -> None:
        imports.stop()
        kept.close()

    return end
