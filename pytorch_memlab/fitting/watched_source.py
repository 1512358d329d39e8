"""Source of a program whose loops and periodic branches call functions of this package.

The calls are added to the syntax tree in memory, so that lines and tracebacks stay as they are.
Code of modules (``forward``) is left as it is: ``torch.compile`` reads its byte code.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from types import CodeType
from typing import Any, Final

LOOP: Final = "__memlab_loop__"
WHILE: Final = "__memlab_while__"
BRANCH: Final = "__memlab_branch__"

_WITHOUT_MEMORY: Final = frozenset(
    word
    for line in (
        "abs float format getattr hasattr int isinstance len max min print range repr round str",
        "close debug error exit flush info item items join keys log makedirs values warning write",
        "add_scalar add_scalars sum perf_counter set_description set_postfix strftime time",
    )
    for word in line.split()
)
"""Names of functions and methods that use no memory of a GPU."""


def watched(source: str | bytes | ast.Module, filename: str) -> CodeType:
    """The code of a file with the calls added."""
    parsed = source if isinstance(source, ast.Module) else ast.parse(source, filename)
    tree = _Watched().visit(parsed)
    return compile(ast.fix_missing_locations(tree), filename, "exec", dont_inherit=True)


class _Watched(ast.NodeTransformer):
    def __init__(self) -> None:
        self._counters: list[frozenset[str]] = []  # of the loops around a statement

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        is_module = any(ast.unparse(base).endswith("Module") for base in node.bases)
        return node if is_module else self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name == "forward" or any(
            "compile" in (text := ast.unparse(decorator)) or "jit" in text
            for decorator in node.decorator_list
        ):
            return node
        outer, self._counters = self._counters, []
        self.generic_visit(node)
        self._counters = outer
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        self._visit_body(node, _names(node.target))
        node.iter = _call(LOOP, node.iter, node)
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        self._visit_body(node, frozenset())
        node.test = ast.BoolOp(ast.And(), [_call(WHILE, None, node), node.test])
        ast.copy_location(node.test, node)
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        if self._is_periodic(node.test):
            node.test = _call(BRANCH, node.test, node)
        return self.generic_visit(node)

    def _visit_body(self, node: ast.For | ast.While, counters: frozenset[str]) -> None:
        counted = {
            statement.target.id
            for statement in ast.walk(node)
            if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name)
        }
        self._counters.append(counters | counted)
        self.generic_visit(node)
        self._counters.pop()

    def _is_periodic(self, test: ast.expr) -> bool:
        """True if a condition depends on how often something happened."""
        nodes = list(ast.walk(test))
        if any(isinstance(node, ast.Mod) for node in nodes):
            return True
        counters = frozenset[str]().union(*self._counters)
        compared = (node for node in nodes if isinstance(node, ast.Compare))
        return any(_names(part) & counters for name in compared for part in ast.walk(name))


def _names(node: ast.AST) -> frozenset[str]:
    return frozenset(name.id for name in ast.walk(node) if isinstance(name, ast.Name))


def _call(name: str, argument: ast.expr | None, node: ast.For | ast.While | ast.If) -> ast.Call:
    """A call with the first and the last line of a statement."""
    lines = [ast.Constant(node.lineno), ast.Constant(node.end_lineno)]
    arguments = [*([] if argument is None else [argument]), *lines]
    call = ast.Call(ast.Name(name, ast.Load()), arguments, [])
    return ast.copy_location(call, argument or node)


# What stands behind a line


@lru_cache(maxsize=64)
def _tree(filename: str) -> ast.Module | None:
    try:
        with open(filename, encoding="utf-8") as file:
            return ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return None


def calls_within(filename: str, line: int) -> tuple[str, ...]:
    """The calls in the body of the ``if`` at a line that may use memory."""
    tree = _tree(filename)
    ifs = (
        [statement for statement in ast.walk(tree) if isinstance(statement, ast.If)] if tree else []
    )
    branch = next((branch for branch in ifs if branch.lineno == line), None)
    return () if branch is None else _calls(branch.body)


def calls_behind(filename: str, line: int) -> tuple[str, ...]:
    """The calls that may use memory in what follows a line in its function, behind its loops."""
    node: Any = _tree(filename)
    calls: list[str] = []
    while node is not None:
        block, at = _block_with(node, line)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            calls.clear()
        if at is None:
            break
        if not isinstance(node, (ast.For, ast.While)):  # earlier iterations ran what follows
            calls[:0] = _calls(block[at + 1 :])
        node = block[at]
    return tuple(dict.fromkeys(calls))


def _block_with(node: Any, line: int) -> tuple[list[Any], int | None]:
    """The statements of a node among which one has a line, and the place of that one."""
    handlers = [handler.body for handler in getattr(node, "handlers", ())]
    named = [getattr(node, name, None) for name in ("body", "orelse", "finalbody")]
    for block in (candidate for candidate in (*named, *handlers) if isinstance(candidate, list)):
        for at, statement in enumerate(block):
            if _has_line(statement, line):
                return block, at
    return [], None


def _has_line(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _calls(block: list[ast.stmt]) -> tuple[str, ...]:
    """The outermost calls of statements, such as ``model.eval()``, as they are written."""
    calls: list[str] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, _NOT_RUN):
            return
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name.rpartition(".")[2] not in _WITHOUT_MEMORY and len(name) <= _LONGEST_NAME:
                calls.append(f"{name}()")
                return
        for child in ast.iter_child_nodes(node):
            visit(child)

    for statement in block:
        visit(statement)
    return tuple(dict.fromkeys(calls))


_NOT_RUN: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.Raise)
_LONGEST_NAME: Final = 40
