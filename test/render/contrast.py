"""Colours of style sheets, and how well they stand out."""

from __future__ import annotations

import re


def _luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    low, high = sorted([_luminance(one), _luminance(other)])
    return (high + 0.05) / (low + 0.05)


def colours_of(style, theme):
    """The variables of a style sheet in one theme."""
    light, _, dark = style.partition("prefers-color-scheme: dark")
    found = re.findall(r"--([\w-]+): (#\w+);", light if theme == "light" else dark)
    return {name: colour if len(colour) > 4 else _doubled(colour) for name, colour in found}


def _doubled(colour):
    return "#" + "".join(2 * digit for digit in colour[1:])
