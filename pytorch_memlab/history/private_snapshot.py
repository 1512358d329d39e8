"""A snapshot of PyTorch's memory history without absolute paths."""

from __future__ import annotations

from typing import Any

from .._common.text.shared_paths import private, private_text


def private_snapshot(snapshot: dict[str, Any]) -> dict[str, Any]:
    """A copy with the names of private files; parts that are shared, as stacks are, stay so."""
    copies: dict[int, Any] = {}
    names: dict[str, str] = {}

    def copy(value: Any) -> Any:
        if isinstance(value, str):
            if value not in names:
                names[value] = private_text(value)
            return names[value]
        if not isinstance(value, dict | list | tuple):
            return value
        if id(value) not in copies:
            copies[id(value)] = copy_of_container(value)
        return copies[id(value)]

    def copy_of_container(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: private(part).removeprefix("./") if key == "filename" else copy(part)
                for key, part in value.items()
            }
        return type(value)(map(copy, value))

    without_paths: dict[str, Any] = copy(snapshot)
    return without_paths
