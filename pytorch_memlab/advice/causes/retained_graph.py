"""``retain_graph=True`` keeps graphs over steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from ..._common.text.prose_size import prose_size
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory
from ..additions import AddingStatement, adding_statements
from ..carried_states import carried_names, detached, makes_tensor, without_graph
from ..cause import Basis, Cause, Remedy, at_line
from ..changes import EditedSource
from ..evidence import is_much, line_with, named_with_line
from ..rewriting import (
    Loop,
    Rewriting,
    changed_code,
    changed_source,
    loop_around,
    name_of_call,
    nodes_of,
    rewritings,
    statement_around,
    with_method,
)

_KEYWORD = "retain_graph"
_ENDS: Final = {"append": -1, "appendleft": 0}
"""Methods of containers, with the index of what they added."""


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
        change, containers = _detached(oom)
        kept_by = [f"retain_graph=True{at_line(line_with(oom, _KEYWORD))}", *containers]
        return self.found(
            saved // 2,  # the graph of the running step is needed
            f"{' and '.join(kept_by)} {'keep' if containers else 'keeps'} the graphs of all"
            f" steps: about {prose_size(saved)}",
            *(
                changed_code(change)
                or ["state = state.detach()  # between steps, without retain_graph"]
            ),
            basis=Basis.ESTIMATED,
            change=change,
        )


def _detached(oom: OutOfMemory) -> tuple[EditedSource | None, list[str]]:
    """The loop without ``retain_graph`` and with a new graph for each step; its containers."""
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
            loop = loop_around(file.tree, statement.lineno)
            names = [] if loop is None else sorted(carried_names(loop))
            new = [without_graph(oom, file.tree, name) for name in names]
            filled = [] if loop is None else list(_carrying_containers(file, loop))
            for adding in filled:
                if adding.line < statement.lineno:
                    new.append(_newest_without_graph(oom, adding))
                elif ast.unparse(adding.value) not in names:
                    file.replace(adding.value, with_method(adding.value, "detach"))
            file.insert_lines((statement.end_lineno or 0) + 1, statement.col_offset, new)
            if not names:
                _detach_attributes(file)
            containers = [
                named_with_line(ast.unparse(adding.container), adding.line) for adding in filled
            ]
            return changed_source(file), containers
    return None, []


def _carrying_containers(file: Rewriting, loop: Loop) -> Iterator[AddingStatement]:
    """Containers that a step fills, and a later step reads."""
    for adding in adding_statements(file, loop):
        name = ast.unparse(adding.container)
        reads = [
            node
            for node in nodes_of(loop, ast.expr)
            if ast.unparse(node) == name and node is not adding.container
        ]
        is_kept = _method_of(adding) in _ENDS and not _is_set(loop, name)
        is_always = adding.node in loop.body
        if is_always and is_kept and reads and makes_tensor(adding.value):
            yield adding


def _method_of(adding: AddingStatement) -> str:
    return name_of_call(adding.node.value) if isinstance(adding.node, ast.Expr) else ""


def _is_set(loop: ast.stmt, name: str) -> bool:
    """True if an iteration begins with another container."""
    targets = [target for node in nodes_of(loop, ast.Assign) for target in node.targets]
    return name in map(ast.unparse, targets)


def _newest_without_graph(oom: OutOfMemory, adding: AddingStatement) -> str:
    newest = f"{ast.unparse(adding.container)}[{_ENDS[_method_of(adding)]}]"
    is_tuple = isinstance(adding.value, (ast.Tuple, ast.List))
    return detached(oom, newest, ast.unparse(adding.value), is_tuple=is_tuple)


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
