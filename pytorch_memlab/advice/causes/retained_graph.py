"""``retain_graph=True`` keeps graphs over steps."""

from __future__ import annotations

import ast

from ..._common.text.prose_size import prose_size
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory
from ..cause import Basis, Cause, Remedy, at_line
from ..changes import EditedSource
from ..evidence import is_much, line_with
from ..rewriting import (
    Rewriting,
    changed_code,
    changed_source,
    loaded_names,
    nodes_of,
    rewritings,
    statement_around,
    stored_names,
)

_KEYWORD = "retain_graph"


class RetainedGraph(Cause):
    """A graph that is kept leads to the graphs of all steps before."""

    name = "a graph that is kept over steps"
    order = 55

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        saved = oom.of_category(Category.SAVED)
        calls = any(_KEYWORD in frame.calls_with for frame in oom.frames)
        is_asked_for = calls and not line_with(oom, rf"{_KEYWORD}\s*=\s*False")
        if not is_asked_for or not is_much(saved, oom):
            return None
        change = _detached(oom)
        return self.found(
            saved // 2,  # the graph of the running step is needed
            f"retain_graph=True{at_line(line_with(oom, _KEYWORD))} keeps the graphs of all"
            f" steps: about {prose_size(saved)}",
            *(
                changed_code(change)
                or ["state = state.detach()  # between steps, without retain_graph"]
            ),
            basis=Basis.ESTIMATED,
            change=change,
        )


def _detached(oom: OutOfMemory) -> EditedSource | None:
    """The loop without ``retain_graph``, with a new graph for what one step gives to the next."""
    for file in rewritings(oom):
        for call in nodes_of(file.tree, ast.Call):
            keywords = [keyword for keyword in call.keywords if keyword.arg == _KEYWORD]
            statement = statement_around(file.tree, call)
            if not keywords or statement is None:
                continue
            call_without = ast.Call(
                call.func,
                call.args,
                [keyword for keyword in call.keywords if keyword.arg != _KEYWORD],
            )
            file.replace(call, ast.unparse(call_without))
            names = sorted(_carried(file.tree, statement))
            new = [f"{name} = {_without_graph(oom, name)}" for name in names]
            file.insert_lines((statement.end_lineno or 0) + 1, statement.col_offset, new)
            if not names:
                _detach_attributes(file)
            return changed_source(file)
    return None


def _without_graph(oom: OutOfMemory, name: str) -> str:
    if any(block.name.startswith(f"{name}[") for block in oom.blocks):
        return f"tuple(part.detach() for part in {name})"
    return f"{name}.detach()"


def _carried(tree: ast.Module, statement: ast.stmt) -> set[str]:
    """Variables that an iteration reads before it sets them, so from the iteration before."""
    loops = [
        loop
        for loop in nodes_of(tree, ast.stmt)
        if isinstance(loop, (ast.For, ast.While))
        and loop.lineno <= statement.lineno <= (loop.end_lineno or 0)
    ]
    if not loops:
        return set()
    loop = max(loops, key=lambda statement: statement.lineno)
    carried: set[str] = set()
    stored = stored_names(loop.target) if isinstance(loop, ast.For) else set[str]()
    read: set[str] = set()
    for part in loop.body:
        read |= loaded_names(part) - stored
        if isinstance(part, ast.Assign):
            new = stored_names(part)
            carried |= new & read - stored if _makes_tensor(part.value) else set()
        stored |= stored_names(part)
    return carried


def _makes_tensor(value: ast.expr) -> bool:
    """False for numbers, and for what is detached already."""
    text = ast.unparse(value)
    is_number = isinstance(value, (ast.Constant, ast.Compare, ast.BoolOp))
    return not is_number and not any(f".{name}()" in text for name in ("item", "detach"))


def _detach_attributes(file: Rewriting) -> None:
    """States that a module keeps from call to call, such as ``self.hidden``."""
    for function in nodes_of(file.tree, ast.FunctionDef):
        for node in nodes_of(function, ast.Assign):
            targets = {
                ast.unparse(attribute)
                for target in node.targets
                for attribute in nodes_of(target, ast.Attribute)
            }
            read = {ast.unparse(attribute) for attribute in nodes_of(node.value, ast.Attribute)}
            new = [f"{name} = {name}.detach()" for name in sorted(targets & read)]
            if new:
                file.insert_lines((node.end_lineno or 0) + 1, node.col_offset, new)
