"""Reads of a container whose tensors are in host memory, with the tensors on the GPU again."""

from __future__ import annotations

import ast

from .additions import AddingStatement, on_parts
from .rewriting import Rewriting, last_name, name_of_call, nodes_of, owners_of_locals

_TAKES = ("pop", "popleft", "choice")
_SAMPLES = ("sample", "choices")
_NEEDS_NO_TENSOR = ("len", "bool", "id")
_JOINS = ("cat", "stack", "concat", "concatenate", "vstack", "hstack")


def read_on_gpu(adding: AddingStatement) -> bool:
    """Move what the file reads from a container; False where a read is not understood."""
    # A sample of a replay memory is moved, not the memory.
    file, name = adding.file, last_name(adding.container)
    parents = {
        id(child): node for node in ast.walk(file.tree) for child in ast.iter_child_nodes(node)
    }
    element = _element_on_gpu(adding)
    if not element or adding.levels > 1:
        return False
    owners = owners_of_locals(file.tree) if isinstance(adding.container, ast.Name) else {}
    owner = owners.get(id(adding.node), {}).get(name)
    reads = 0
    for node in ast.walk(file.tree):
        is_read = isinstance(getattr(node, "ctx", None), ast.Load) and last_name(node) == name
        if not is_read or isinstance(node, (ast.Subscript, ast.Starred)):
            continue
        if owners.get(id(node), {}).get(name) != owner:  # another variable of that name
            continue
        assert isinstance(node, (ast.Name, ast.Attribute))
        moved = _moved(file, node, parents, element)
        if moved is None:
            return False
        reads += moved
    return reads > 0


def _moved(
    file: Rewriting, node: ast.expr, parents: dict[int, ast.AST], element: str
) -> int | None:
    """Move the elements that one use of a container reads; their number, None if not understood."""
    above = parents[id(node)]
    around = parents.get(id(above))
    match above:
        case ast.Attribute(attr=method):
            is_dropped = isinstance(parents.get(id(around)), ast.Expr)
            if method not in _TAKES or not isinstance(around, ast.Call) or is_dropped:
                return 0
            file.replace(around, _applied(element, ast.unparse(around)))
            return 1
        case ast.Call() if name_of_call(above) in _NEEDS_NO_TENSOR or above.func is node:
            return 0
        case ast.Call() if name_of_call(above) in _SAMPLES:
            file.replace(above, f"[{element} for one in {ast.unparse(above)}]")
            return 1
        case ast.Call() if name_of_call(above) in _TAKES:
            file.replace(above, _applied(element, ast.unparse(above)))
            return 1
        case ast.Call() if name_of_call(above) in _JOINS and element == "one.cuda()":
            file.insert_after(above, ".cuda()")
            return 1
        case ast.Subscript(slice=ast.Slice()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
            return None
        case ast.Subscript():
            file.replace(above, _applied(element, ast.unparse(above)))
            return 1
        case ast.For(iter=taken) | ast.comprehension(iter=taken) if taken is node:
            file.replace(node, f"({element} for one in {ast.unparse(node)})")
            return 1
        case ast.Compare() | ast.If() | ast.While() | ast.UnaryOp() | ast.BoolOp():
            return 0
    return None


def _applied(element: str, value: str) -> str:
    """An expression of ``one`` for one value, which is read once."""
    if element.count("one") == 1:
        return element.replace("one", value, 1)
    return f"[{element} for one in [{value}]][0]"


def _element_on_gpu(adding: AddingStatement) -> str:
    """An element of the container, called ``one``, on the GPU; empty if it is not known how."""
    match adding.value:
        case ast.Tuple():
            return f"tuple({on_parts('cuda', 'one')})"
        case ast.List():
            return f"[{on_parts('cuda', 'one')}]"
        case ast.Dict():
            part = "part.cuda() if torch.is_tensor(part) else part"
            return f"{{key: {part} for key, part in one.items()}}"
        case ast.Call(func=function) if _is_named_tuple(adding.file, last_name(function)):
            return f"{ast.unparse(function)}(*({on_parts('cuda', 'one')}))"
        case ast.Call() if name_of_call(adding.value)[:1].isupper():
            return ""
    return "one.cuda()"


def _is_named_tuple(file: Rewriting, name: str) -> bool:
    """True for a class whose objects are tuples, so far as the file tells."""
    for node in nodes_of(file.tree, ast.Assign):
        if any(last_name(target) == name for target in node.targets):
            return name_of_call(node.value) == "namedtuple"
    return any(
        node.name == name and "NamedTuple" in map(last_name, node.bases)
        for node in nodes_of(file.tree, ast.ClassDef)
    )
