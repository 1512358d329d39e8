"""Work that no automatic garbage collection interrupts.

Note [Collections that are off]

Several threads turn collections off for a while, and on again. One that finds them off leaves them:
the thread that turned them off may turn them on right after that question. If the other turned them
off then, they would stay off, and the program would keep all its cycles.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

from ..interrupts.whole_block import whole_block


@whole_block
def no_garbage_collection() -> Iterator[None]:
    """Let Python search for no cycles: a search through all that torch has takes 70 ms."""
    was_enabled = gc.isenabled()
    if was_enabled:
        gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
