"""The holders of a peak as a page: categories, lines, modules and call stacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from .._common.prose_size import prose_size
from .._common.quoted import printable
from . import flame_graph, module_tree
from .page import Fragment, fill, page
from .peak import NO_MODULE, head
from .rows import place, source_line

if TYPE_CHECKING:
    from ..history.holders import LineDetails, PeakHolders, Share

_MOST_LINES: Final = 500
_MOST_NAMED: Final = 3


def render(
    peaks: Sequence[PeakHolders], title: str = "What holds the GPU memory at its peak"
) -> str:
    """The peaks of some GPUs as a whole page, which loads nothing from elsewhere."""
    several_runs = len({one.peak.run for one in peaks}) > 1
    return page(
        title,
        [
            part
            for number, holders in enumerate(peaks)
            for part in fragments(holders, number if several_runs else None)
        ],
    )


def fragments(holders: PeakHolders, place: int | None = None) -> list[Fragment]:
    """The peak of one GPU as parts of a page: tables, the tree of modules, and the flame graph."""
    number = holders.peak.device if place is None else place
    return [
        table(holders, number),
        module_tree.fragment(holders.module_tree(), number),
        flame_graph.fragment(holders.by_stack(), number),
    ]


def table(holders: PeakHolders, number: int) -> Fragment:
    """The categories and the lines of a peak as a part of a page."""
    total = max(holders.peak.active, 1)
    details = holders.line_details()
    rest = details[_MOST_LINES:]
    return Fragment(
        fill(
            "peak.html",
            device=number,
            head=head(holders.peak),
            categories=[
                {"name": one.name, "size": prose_size(one.size), **_part(one.size, total)}
                for one in holders.by_category()
            ],
            lines=[_line(one, total) for one in details[:_MOST_LINES]],
            rest=f"{len(rest):,} more" if rest else "",
            rest_size=prose_size(sum(one.holder.size for one in rest)),
            rest_share=f"{sum(one.holder.size for one in rest) / total:.1%}",
        ),
        "peak.css",
    )


def _part(size: int, total: int) -> dict[str, str]:
    return {"share": f"{size / total:.1%}", "width": f"{100 * size / total:.4g}"}


def _line(details: LineDetails, total: int) -> dict[str, str]:
    holder = details.holder
    backward = f"{prose_size(holder.backward)} in the backward pass" if holder.backward else ""
    return {
        "size": prose_size(holder.size),
        "place": place(holder.file, holder.line, "", ""),
        "file": printable(holder.file),
        "function": printable(holder.function),
        "blocks": f"{holder.blocks:,}",
        "backward": backward,
        "categories": _named(details.categories),
        "modules": _named([one for one in details.modules if one.name]),
        "source": printable(source_line(holder.file, holder.line)),
        **_part(holder.size, total),
    }


def _named(shares: Sequence[Share]) -> str:
    """The names of the largest parts, and how many more there are."""
    names = [printable(share.name) or NO_MODULE for share in shares[:_MOST_NAMED]]
    more = len(shares) - len(names)
    return ", ".join(names) + (f" and {more:,} more" if more else "")
