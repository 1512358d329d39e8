"""The one list of output formats, which are found by themselves in the modules of this folder."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TypeVar

from ..output_format import OutputFormat

T = TypeVar("T")


def output_formats(kind: type[T]) -> dict[str, OutputFormat[T]]:
    """The formats of one kind of results by the endings of files, in the order of messages."""
    classes = [
        value
        for module in pkgutil.iter_modules(__path__)
        for value in vars(import_module(f"{__name__}.{module.name}")).values()
        if isinstance(value, type) and issubclass(value, OutputFormat) and value is not OutputFormat
    ]
    in_order = sorted(
        (output_format for output_format in classes if output_format.shows is kind),
        key=lambda output_format: output_format.order,
    )
    return {
        ending: output_format(ending)
        for output_format in in_order
        for ending in output_format.endings
    }
