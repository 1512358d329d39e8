"""Text and HTML of objects that show themselves: no package of data imports ``render``."""

from __future__ import annotations

from importlib import import_module


def rendered(renderer: str, value: object) -> str:
    """The text of a value by a function of ``render``, such as ``"memory_report:snapshot"``."""
    module, _, function = renderer.partition(":")
    text: str = getattr(import_module(f"pytorch_memlab.render.{module}"), function)(value)
    return text
