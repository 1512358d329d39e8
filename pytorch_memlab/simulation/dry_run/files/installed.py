"""The overlay of this process, as long as something needs it."""

from __future__ import annotations

import os
from types import FunctionType
from typing import Any

from ...._common.frames.traceback_frames import is_without_frames, without_frames
from ...._common.patching.after_import import AfterImport
from ...._common.patching.patches import Patches
from . import compressed, opening, os_functions, processes, sockets
from .overlay import VARIABLE, Overlay, new_overlay


class _Replacements(Patches):
    """Functions in place of others: an error that leaves one names no frame of it."""

    def set(self, owner: Any, name: str, value: Any) -> None:
        if type(value) is FunctionType and not is_without_frames(value):
            value = without_frames(value)
        super().set(owner, name, value)


class _Installed:
    """An overlay with the functions that it replaces."""

    def __init__(self, overlay: Overlay) -> None:
        self.overlay = overlay
        self.users = 0
        self.patches = _Replacements()
        self._imports = AfterImport()
        self._before = os.environ.get(VARIABLE)
        opening.install(overlay, self.patches)
        os_functions.install(overlay, self.patches)
        compressed.install(self._imports, self.patches)
        processes.install(overlay, self.patches)
        sockets.install(overlay, self.patches)
        self._imports.start()
        os.environ[VARIABLE] = overlay.folder

    def end(self) -> None:
        """Put everything back, and remove the copies."""
        self._imports.stop()
        try:
            self.patches.undo(keeps_later=True)
        finally:
            if self._before is None:
                os.environ.pop(VARIABLE, None)
            else:
                os.environ[VARIABLE] = self._before
            self.overlay.close()


_installed: _Installed | None = None


def begin() -> Overlay:
    """The overlay of this process; nested dry runs share one."""
    global _installed
    if _installed is None:
        _installed = _Installed(new_overlay())
    _installed.users += 1
    return _installed.overlay


def end() -> None:
    """End the use of the overlay; the last one removes it."""
    global _installed
    if _installed is None:
        return
    _installed.users -= 1
    if not _installed.users:
        installed, _installed = _installed, None
        installed.end()


def join() -> None:
    """Take part in the overlay of the process that started this one, until this one ends."""
    global _installed
    folder: Any = os.environ.get(VARIABLE)
    if _installed is None and folder and os.path.isdir(folder):
        overlay = Overlay(folder)
        overlay.is_shared = True
        _installed = _Installed(overlay)
        _installed.users = 1
