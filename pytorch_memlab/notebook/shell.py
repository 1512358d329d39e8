"""The IPython shell that runs this code, and what it is doing."""

from __future__ import annotations

import linecache
import sys
import traceback
from types import FrameType
from typing import TYPE_CHECKING, Any

from .._common.process.ipython import ipython_shell
from ..errors import UsageError

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def current_shell() -> InteractiveShell:
    """The IPython shell that runs this code. Raises ``UsageError`` outside IPython."""
    shell = ipython_shell()
    if shell is None:
        raise UsageError("this needs IPython: run it in a notebook, or in ipython")
    return shell  # type: ignore[no-any-return]


def last_cell_number(shell: InteractiveShell) -> int:
    """The number of the newest cell in a shell's history."""
    return len(shell.user_ns.get("In", ())) - 1


def running_source(shell: InteractiveShell, frame: FrameType) -> str:
    """The source of the cell that runs, from which the lines of its frame are counted."""
    lines = linecache.getlines(frame.f_code.co_filename)
    if lines:
        return "".join(lines)
    # %%time compiles without leaving its source anywhere: what was typed last has it.
    history = shell.history_manager
    typed = [] if history is None else history.input_hist_raw
    return typed[-1] if typed else ""


def is_resetting() -> bool:
    """True while IPython empties its namespaces: at its end, or for ``%reset``."""
    from IPython.core.interactiveshell import InteractiveShell

    return _is_in(InteractiveShell.reset)


def is_reloading() -> bool:
    """True while IPython loads an extension again, for which it unloads it first."""
    from IPython.core.extensions import ExtensionManager

    return _is_in(ExtensionManager.reload_extension)


def is_running_a_cell() -> bool:
    """True while this thread runs a cell."""
    from IPython.core.interactiveshell import InteractiveShell

    return _is_in(InteractiveShell.run_code)


def _is_in(function: Any) -> bool:
    """True if a call of a function is in progress in this thread."""
    running = (frame.f_code for frame, _ in traceback.walk_stack(sys._getframe()))
    return function.__code__ in running
