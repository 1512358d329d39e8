"""Files of this package itself, which a dry run does not hold back."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from ..interrupts.whole_block import whole_block


class _State(threading.local):
    depth = 0


_state = _State()


def is_direct() -> bool:
    """True if this thread works on the disk itself."""
    return _state.depth > 0


@whole_block
def on_disk() -> Iterator[None]:
    """Read and write the disk itself, also in a dry run."""
    _state.depth += 1
    try:
        yield
    finally:
        _state.depth -= 1
