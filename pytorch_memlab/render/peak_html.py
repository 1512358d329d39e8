"""The holders of a peak as a page, and in a notebook. See Note [HTML in notebooks]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .._common.frames.user_code import is_of_user
from .._common.process.ipython import file_name
from .._common.text.prose_size import prose_size
from .._common.text.quoted import printable
from .._common.text.shared_paths import shown
from ..history.holders import NO_MODULE, CallNode, ModuleNode, PeakHolders, Share, call_tree
from ..history.model import Stack
from .page import Fragment, fill, page
from .peak import failures, head
from .private_pools import at_peak
from .rows import source_line

_MOST_LINES: Final = 500
_MOST_NOTEBOOK_LINES: Final = 20
_MOST_NAMED: Final = 3
_MOST_MODULES: Final = 2000
_OPEN_SHARE: Final = 0.05
_OPEN_DEPTH: Final = 3
_MOST_CALLS: Final = 2500


def render(
    peaks: Sequence[PeakHolders], title: str = "What holds the GPU memory at its peak"
) -> str:
    """The peaks of some GPUs as a whole page, which loads nothing from elsewhere."""
    several_runs = len({peak.peak.run for peak in peaks}) > 1
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
        module_tree(holders.module_tree(), number),
        flame_graph(holders.by_stack(), number),
    ]


def table(holders: PeakHolders, number: int) -> Fragment:
    """The categories and the lines of a peak as a part of a page."""
    details = holders.line_details()
    html = fill(
        "peak.html",
        device=number,
        head=head(holders.peak),
        pools=at_peak(holders),
        total=max(holders.peak.active, 1),
        categories=holders.by_category(),
        lines=details[:_MOST_LINES],
        rest=details[_MOST_LINES:],
        named=_named,
    )
    return Fragment(html, "peak.css", ("sortable.js",))


def _named(shares: Sequence[Share]) -> str:
    """The names of the largest parts, and how many more there are."""
    names = [printable(share.name) or NO_MODULE for share in shares[:_MOST_NAMED]]
    more = len(shares) - len(names)
    return ", ".join(names) + (f" and {more:,} more" if more else "")


# Modules


def module_tree(root: ModuleNode, place: int = 0) -> Fragment:
    """A tree of modules as a part of a page."""
    return Fragment(
        fill(
            "module_tree.html",
            device=place,
            rows=_module_rows(root),
            root=root,
            left_out=max(sum(1 for _ in _nodes(root)) - _MOST_MODULES, 0),
        ),
        "module_tree.css",
    )


def _nodes(root: ModuleNode) -> list[tuple[int, ModuleNode]]:
    """All modules with their depth, each followed by those in it."""
    nodes = []
    waiting = [(0, child) for child in reversed(root.children)]
    while waiting:
        depth, node = waiting.pop()
        nodes.append((depth, node))
        waiting += [(depth + 1, child) for child in reversed(node.children)]
    return nodes


def _module_rows(root: ModuleNode) -> list[tuple[str, ModuleNode]]:
    """Parts of the template: modules that begin, those without parts, and ends of the former."""
    nodes = _nodes(root)
    if len(nodes) > _MOST_MODULES:
        order = sorted(
            range(len(nodes)), key=lambda place: (-nodes[place][1].total, nodes[place][0])
        )
        nodes = [nodes[place] for place in sorted(order[:_MOST_MODULES])]
    rows = []
    depth_before = 0
    for number, (depth, node) in enumerate(nodes):
        rows += [("end", root)] * (depth_before - depth)
        kind = "leaf"
        if number + 1 < len(nodes) and nodes[number + 1][0] > depth:
            is_open = depth < _OPEN_DEPTH and node.total >= _OPEN_SHARE * root.total
            kind = "open" if is_open else "closed"
        rows.append((kind, node))
        depth_before = depth
    rows += [("end", root)] * depth_before
    if root.own:
        rows.append(("leaf", ModuleNode(NO_MODULE, "", root.own, root.own)))
    return rows


# Call stacks


def flame_graph(stacks: Sequence[tuple[Stack, int]], place: int = 0) -> Fragment:
    """A flame graph as a part of a page."""
    calls = call_tree(stacks)
    total = max(calls[0].size, 1)
    drawn, widest_left_out = list(calls), ""
    if len(calls) > _MOST_CALLS:
        # The caller of each call that is drawn is drawn too.
        order = sorted(
            range(len(calls)), key=lambda place: (-calls[place].size, calls[place].depth)
        )
        drawn = [calls[place] for place in sorted(order[:_MOST_CALLS])]
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
        ("sizes.js", "flame_graph.js"),
    )


def _box(call: CallNode, total: int) -> dict[str, object]:
    share = f"{prose_size(call.size)}, {call.size / total:.1%}"
    if call.frame is None:
        name, place, label, source, is_users = "all", "", "", "", True
    else:
        file, line, name = call.frame
        is_users = is_of_user(file)
        place = f"{shown(file)}:{line}" if file else ""
        label = f"{file_name(file)}:{line}" if file else ""
        source = printable(source_line(file, line)) if is_users else ""
    return {
        "depth": call.depth,
        "start": call.start,
        "size": call.size,
        "left": f"{100 * call.start / total:.4g}",
        "width": f"{100 * call.size / total:.4g}",
        "label": f"{printable(name)} {printable(label)}".rstrip(),
        "said": " · ".join(filter(None, (printable(name), share, place, source))),
        "is_library": not is_users,
        "colour": sum(map(ord, place)) % 3,
    }


# In a notebook


def notebook_fragment(holders: PeakHolders) -> str:
    """The peak of one GPU and the lines that hold most of it."""
    lines = holders.by_line()
    return fill(
        "notebook_peak.html",
        head=head(holders.peak),
        failures=[*filter(None, [at_peak(holders)]), *failures(holders)],
        total=max(holders.peak.active, 1),
        lines=lines[:_MOST_NOTEBOOK_LINES],
        rest=lines[_MOST_NOTEBOOK_LINES:],
        categories=[
            f"{prose_size(category.size)} {category.name}" for category in holders.by_category()
        ],
    )
