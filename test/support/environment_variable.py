"""The environment of a started process. The file imports no torch: it starts fast."""

from __future__ import annotations

import os
from typing import Any


def tell_variable(results: Any, name: str) -> None:
    """Put a variable of this process into a queue, or None."""
    results.put(os.environ.get(name))
