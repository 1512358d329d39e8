"""The variables of the user in a shell: their names, and their deletion for good."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from IPython.core.interactiveshell import InteractiveShell

_CACHED_OUTPUT = re.compile(r"_{1,3}|_\d+")
_MISSING: Any = object()


def variable_names(shell: InteractiveShell) -> set[str]:
    """Names that the user has defined: none of IPython's own, none that begin with ``_``."""
    hidden = shell.user_ns_hidden
    return {
        name
        for name, value in shell.user_ns.items()
        if not name.startswith("_") and value is not hidden.get(name, _MISSING)
    }


def delete_variables(shell: InteractiveShell, names: Iterable[str]) -> None:
    """Delete variables, and the same objects in ``Out`` and ``_``.

    An object that another variable refers to stays in both. Scripts that ``%run`` ran lose
    variables of these names too: IPython keeps the namespace of each script.
    """
    deleted = {}
    for name in names:
        if name in shell.user_ns:
            value = shell.user_ns.pop(name)
            deleted[id(value)] = value
            for script in shell._main_mod_cache.values():
                script.__dict__.pop(name, None)
    for name, value in shell.user_ns.items():
        if not _CACHED_OUTPUT.fullmatch(name):
            deleted.pop(id(value), None)
    _forget_outputs(shell, lambda number, value: id(value) in deleted)


def forget_outputs_since(shell: InteractiveShell, number: int) -> None:
    """Forget results in ``Out`` and ``_`` of the cells from a number on."""
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
