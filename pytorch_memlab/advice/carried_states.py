"""Values that one iteration of a loop gives to the next, such as the state of a recurrent layer."""

from __future__ import annotations

import ast

from ..history.out_of_memory import OutOfMemory
from .additions import AddingStatement
from .rewriting import Loop, loaded_names, loop_around, nodes_of, stored_names


def carried_names(loop: Loop) -> set[str]:
    """Variables that an iteration reads before it sets them, so from the iteration before."""
    carried: set[str] = set()
    stored = stored_names(loop.target) if isinstance(loop, ast.For) else set[str]()
    read: set[str] = set()
    for part in loop.body:
        read |= loaded_names(part) - stored
        if isinstance(part, ast.Assign):
            new = stored_names(part)
            carried |= new & read - stored if makes_tensor(part.value) else set()
        stored |= stored_names(part)
    return carried


def carried_into(adding: AddingStatement) -> list[str]:
    """The carried variables that a statement puts into a container."""
    loop = loop_around(adding.file.tree, adding.line)
    names = set[str]() if loop is None else carried_names(loop) & loaded_names(adding.value)
    return sorted(names)


def makes_tensor(value: ast.expr) -> bool:
    """False for numbers, and for what is detached already."""
    text = ast.unparse(value)
    is_number = isinstance(value, (ast.Constant, ast.Compare, ast.BoolOp))
    return not is_number and not any(f".{name}()" in text for name in ("item", "detach"))


def without_graph(oom: OutOfMemory, tree: ast.Module, name: str) -> str:
    """A statement that gives a variable its value, a tensor or a tuple of them, without graph."""
    made = [
        node.value for node in nodes_of(tree, ast.Assign) if name in map(ast.unparse, node.targets)
    ]
    return detached(oom, name, name, is_tuple=any(isinstance(value, ast.Tuple) for value in made))


def detached(oom: OutOfMemory, target: str, name: str, *, is_tuple: bool) -> str:
    """A statement that detaches a target, whose value a name of the program has too."""
    if is_tuple or any(block.name.startswith(f"{name}[") for block in oom.blocks):
        return f"{target} = tuple(part.detach() for part in {target})"
    return f"{target} = {target}.detach()"
