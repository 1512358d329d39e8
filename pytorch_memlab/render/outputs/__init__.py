"""The formats of the report of a run, a module for each, which is found by itself."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from ..output_format import OutputFormat


def output_formats() -> dict[str, OutputFormat]:
    """One of each format by the ending of its files, in the order of messages."""
    classes = [
        value
        for module in pkgutil.iter_modules(__path__)
        for value in vars(import_module(f"{__name__}.{module.name}")).values()
        if isinstance(value, type) and issubclass(value, OutputFormat) and value is not OutputFormat
    ]
    in_order = sorted(classes, key=lambda output_format: output_format.order)
    return {output_format.ending: output_format() for output_format in in_order}
