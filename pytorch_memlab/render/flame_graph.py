"""The stacks behind a peak as a flame graph: the outermost call on top, as wide as its bytes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from .._common.prose_size import prose_size
from .._common.quoted import printable
from .._common.user_code import is_of_user
from ..history.call_tree import call_tree
from .page import Fragment, fill
from .rows import source_line

if TYPE_CHECKING:
    from ..history.call_tree import Call
    from ..history.model import Stack

_MOST_CALLS: Final = 2500


def fragment(stacks: Sequence[tuple[Stack, int]], place: int = 0) -> Fragment:
    """A flame graph as a part of a page."""
    calls = call_tree(stacks)
    total = max(calls[0].size, 1)
    drawn, widest_left_out = list(calls), ""
    if len(calls) > _MOST_CALLS:
        # The caller of each call that is drawn is drawn too.
        order = sorted(range(len(calls)), key=lambda one: (-calls[one].size, calls[one].depth))
        drawn = [calls[one] for one in sorted(order[:_MOST_CALLS])]
        widest_left_out = f"{min(call.size for call in drawn) / total:.2%}"
    return Fragment(
        fill(
            "flame_graph.html",
            device=place,
            total=calls[0].size,
            depth=max(call.depth for call in drawn) + 1,
            calls=[_box(call, total) for call in drawn],
            left_out=len(calls) - len(drawn),
            widest_left_out=widest_left_out,
        ),
        "flame_graph.css",
        "flame_graph.js",
    )


def _box(call: Call, total: int) -> dict[str, object]:
    share = f"{prose_size(call.size)}, {call.size / total:.1%}"
    if call.frame is None:
        name, place, source, is_users = "all", "", "", True
    else:
        frame = call.frame
        name = printable(frame.name)
        is_users = is_of_user(frame.filename)
        place = printable(f"{frame.filename}:{frame.line}") if frame.filename else ""
        source = printable(source_line(frame.filename, frame.line)) if is_users else ""
    return {
        "depth": call.depth,
        "start": call.start,
        "size": call.size,
        "left": f"{100 * call.start / total:.4g}",
        "width": f"{100 * call.size / total:.4g}",
        "label": f"{name} {os.path.basename(place)}".rstrip(),
        "said": " · ".join(part for part in (name, share, place, source) if part),
        "is_library": not is_users,
        "colour": sum(map(ord, place)) % 3,
    }
