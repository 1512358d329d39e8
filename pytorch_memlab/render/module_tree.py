"""The modules behind a peak as a tree that opens and closes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .._common.prose_size import prose_size
from .._common.quoted import printable
from .page import Fragment, fill
from .peak import NO_MODULE

if TYPE_CHECKING:
    from ..history.holders import ModuleNode

_MOST_MODULES: Final = 2000
_OPEN_SHARE: Final = 0.05
_OPEN_DEPTH: Final = 3


def fragment(root: ModuleNode, place: int = 0) -> Fragment:
    """A tree of modules as a part of a page."""
    return Fragment(
        fill(
            "module_tree.html",
            device=place,
            rows=_rows(root),
            has_modules=bool(root.children),
            left_out=max(sum(1 for _ in _nodes(root)) - _MOST_MODULES, 0),
        ),
        "module_tree.css",
    )


def _nodes(root: ModuleNode) -> list[tuple[int, ModuleNode]]:
    """All modules with their depth, each followed by those in it."""
    found = []
    waiting = [(0, child) for child in reversed(root.children)]
    while waiting:
        depth, node = waiting.pop()
        found.append((depth, node))
        waiting += [(depth + 1, child) for child in reversed(node.children)]
    return found


def _rows(root: ModuleNode) -> list[dict[str, object]]:
    """Parts of the template: modules that open, those without parts, and ends of the former."""
    nodes = _nodes(root)
    if len(nodes) > _MOST_MODULES:
        order = sorted(range(len(nodes)), key=lambda one: (-nodes[one][1].total, nodes[one][0]))
        nodes = [nodes[one] for one in sorted(order[:_MOST_MODULES])]
    rows: list[dict[str, object]] = []
    depth_before = 0
    for number, (depth, node) in enumerate(nodes):
        rows += [{"kind": "end"}] * (depth_before - depth)
        following = nodes[number + 1][0] if number + 1 < len(nodes) else 0
        path = printable(node.path)
        row = _line(printable(node.name), path, node.total, node.own, root.total)
        if following > depth:
            is_open = depth < _OPEN_DEPTH and node.total >= _OPEN_SHARE * root.total
            row |= {"kind": "begin", "is_open": is_open}
        rows.append(row)
        depth_before = depth
    rows += [{"kind": "end"}] * depth_before
    if root.own:
        rows.append(_line(NO_MODULE, "", root.own, root.own, root.total))
    return rows


def _line(name: str, path: str, size: int, own: int, total: int) -> dict[str, object]:
    share = size / max(total, 1)
    return {
        "kind": "leaf",
        "name": name,
        "path": path,
        "size": prose_size(size),
        "own": "" if own in (0, size) else f"{prose_size(own)} itself",
        "share": f"{share:.1%}",
        "width": f"{100 * share:.4g}",
    }
