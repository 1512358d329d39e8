"""A tensor grows in each step, because something is joined to it."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..._common.text.prose_size import prose_size
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory
from ..cause import Cause, Remedy, at_line
from ..changes import EditedSource
from ..evidence import is_much
from ..rewriting import (
    Rewriting,
    changed_code,
    changed_source,
    last_name,
    name_of_call,
    nodes_of,
    rewritings,
    with_method,
)

_JOINS = ("cat", "concat", "concatenate", "hstack", "vstack")
_HOST_USES = ("shape", "size", "device", "dtype", "cpu", "numel", "dim")
"""Attributes for which it does not matter where a tensor is."""


@dataclass(frozen=True, slots=True)
class _Growth:
    """A statement that joins something to a tensor, under the same name."""

    file: Rewriting
    node: ast.Assign
    call: ast.Call

    @property
    def target(self) -> str:
        return ast.unparse(self.node.targets[0])

    @property
    def dimension(self) -> int | None:
        """The dimension that grows; None if it is not written as a number."""
        if name_of_call(self.call) == "hstack":
            return 1
        dims = [keyword.value for keyword in self.call.keywords if keyword.arg in ("dim", "axis")]
        for value in [*dims, *self.call.args[1:2]]:
            try:
                return int(ast.literal_eval(value))
            except (ValueError, TypeError):
                return None
        return 0

    def newest(self, limit: int) -> str:
        """The index of what was joined last, as long as that."""
        joined = self.call.args[0]
        assert isinstance(joined, (ast.List, ast.Tuple))
        is_first = ast.unparse(joined.elts[0]) == self.target
        part = f"-{limit}:" if is_first else f":{limit}"
        dimension = self.dimension or 0
        return f"[..., {part}]" if dimension < 0 else f"[{':, ' * dimension}{part}]"


class GrowingBuffer(Cause):
    """``bank = torch.cat([bank, new])`` in a loop."""

    name = "a tensor that grows"
    order = 58

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        files = list(rewritings(oom))
        growths = [growth for file in files for growth in _growths(file)]
        for growth in growths:
            blocks = [
                block
                for block in oom.blocks
                if block.place is not None
                and block.place.file == growth.file.file
                and growth.node.lineno <= block.place.line <= (growth.node.end_lineno or 0)
                and block.category not in (Category.PARAMETERS, Category.GRADIENTS)
            ]
            size = sum(block.size for block in blocks)
            if not is_much(size, oom):
                continue
            name = last_name(growth.node.targets[0])
            has_graph = any(
                group.is_variable and group.name.rpartition(".")[2] == name for group in oom.groups
            )
            dimension = growth.dimension or 0
            shapes = [block.shape for block in blocks if len(block.shape) > dimension]
            length = max((shape[dimension] for shape in shapes if shape), default=0)
            change, effect, part = _change(growth, growths, length, has_graph=has_graph)
            return self.found(
                size // part,
                f"{growth.target}{at_line(growth.node.lineno)} grows by what is joined to it:"
                f" {prose_size(size)}",
                *(changed_code(change) or [f"{growth.target} = {growth.target}[-limit:]"]),
                effect=effect,
                change=change,
            )
        return None


def _growths(file: Rewriting) -> list[_Growth]:
    growths = []
    for node in nodes_of(file.tree, ast.Assign):
        for call in nodes_of(node.value, ast.Call):
            if name_of_call(call) in _JOINS and call.args:
                joined = call.args[0]
                parts = joined.elts if isinstance(joined, (ast.List, ast.Tuple)) else []
                target = ast.unparse(node.targets[0])
                if any(ast.unparse(part) == target for part in parts):
                    growths.append(_Growth(file, node, call))
    return growths


def _change(
    growth: _Growth, growths: list[_Growth], length: int, *, has_graph: bool
) -> tuple[EditedSource | None, str, int]:
    """The change, what it changes, and the divisor of the bytes that it frees."""
    file = growth.file
    joined = growth.call.args[0]
    assert isinstance(joined, (ast.List, ast.Tuple))
    if has_graph:
        for part in joined.elts:
            if ast.unparse(part) != growth.target:
                file.replace(part, with_method(part, "detach"))
        return changed_source(file), "", 2
    if not _is_used_on_gpu(growth):
        for part in joined.elts:
            file.replace(part, with_method(part, "cpu"))
        return changed_source(file), "", 1
    if growth.dimension not in (0, 1, 2, 3, -1):
        return None, "", 2
    limit = 1 << max(0, (length // 2).bit_length() - 1)
    owner = growth.target.rpartition(".")[0]
    for other in growths:  # rows of several tensors belong together
        if other is growth or (owner and other.target.rpartition(".")[0] == owner):
            file.insert_after(other.node.value, other.newest(limit))
    rows = "rows" if growth.dimension == 0 else "columns"
    return changed_source(file), f"keeps the newest {limit} {rows} only", 2


def _is_used_on_gpu(growth: _Growth) -> bool:
    """True if something else reads the tensor than its size, or a copy in host memory."""
    name = last_name(growth.node.targets[0])
    inside = {id(part) for part in ast.walk(growth.node)}
    allowed: set[int] = set()
    for node in ast.walk(growth.file.tree):
        match node:
            case ast.Attribute(value=value, attr=attribute) if attribute in _HOST_USES:
                allowed.add(id(value))
            case ast.Call(func=ast.Name(id="len" | "print"), args=args):
                allowed |= {id(arg) for arg in args}
            case ast.Call(func=ast.Attribute(attr="save"), args=[value, *_]):
                allowed.add(id(value))
    return any(
        isinstance(node, (ast.Name, ast.Attribute))
        and isinstance(node.ctx, ast.Load)
        and last_name(node) == name
        and id(node) not in allowed | inside
        for node in ast.walk(growth.file.tree)
    )
