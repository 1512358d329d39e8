"""Work that no automatic garbage collection interrupts."""

from __future__ import annotations

import gc
from collections.abc import Iterator

from ..interrupts.whole_block import whole_block


@whole_block
def no_garbage_collection() -> Iterator[None]:
    """Let Python search for no cycles: a search through all that torch has takes 70 ms."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
