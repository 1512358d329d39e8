"""The user's variables in a shell: which there are, and how to let go of some for good."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from IPython.core.interactiveshell import InteractiveShell

_CACHED_OUTPUT = re.compile(r"_{1,3}|_\d+")
_MISSING: Any = object()


def variable_names(shell: InteractiveShell) -> set[str]:
    """Names that the user has defined: none of IPython's own, none that begin with ``_``.

    Args:
        shell: an IPython shell.
    """
    hidden = shell.user_ns_hidden
    return {
        name
        for name, value in shell.user_ns.items()
        if not name.startswith("_") and value is not hidden.get(name, _MISSING)
    }


def delete_variables(shell: InteractiveShell, names: Iterable[str]) -> None:
    """Delete variables, and what ``Out`` and ``_`` hold of the same objects.

    An object that another variable holds stays in both. Scripts that ``%run`` ran lose variables
    of these names too: IPython keeps each script's namespace.

    Args:
        shell: an IPython shell.
        names: of variables; those that do not exist are no error.
    """
    gone = {}
    for name in names:
        if name in shell.user_ns:
            value = shell.user_ns.pop(name)
            gone[id(value)] = value
            for script in shell._main_mod_cache.values():
                script.__dict__.pop(name, None)
    held = {
        id(value) for name, value in shell.user_ns.items() if not _CACHED_OUTPUT.fullmatch(name)
    }
    _forget_outputs(shell, lambda number, value: id(value) in gone and id(value) not in held)


def forget_outputs_since(shell: InteractiveShell, number: int) -> None:
    """Forget results of cells that ``Out`` and ``_`` hold.

    Args:
        shell: an IPython shell.
        number: of the first cell whose result is forgotten.
    """
    _forget_outputs(shell, lambda found, value: found >= number)


def _forget_outputs(shell: InteractiveShell, is_to_go: Any) -> None:
    outputs = shell.user_ns.get("Out", {})
    for number in [found for found, value in outputs.items() if is_to_go(found, value)]:
        value = outputs.pop(number)
        # IPython keeps each result under several names, and all of these a second time as hidden.
        for namespace in (shell.user_ns, shell.user_ns_hidden):
            namespace.pop(f"_{number}", None)
            for name in ("_", "__", "___"):
                if namespace.get(name) is value:
                    namespace[name] = ""
        for name in ("_", "__", "___"):
            if getattr(shell.displayhook, name, None) is value:
                setattr(shell.displayhook, name, "")
