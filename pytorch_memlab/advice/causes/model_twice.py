"""The GPU holds a second copy of the parameters."""

from __future__ import annotations

import ast
import re
from collections import Counter

from ..._common.text.prose_size import prose_size
from ...history.model import Category
from ...history.out_of_memory import BlockInUse, OutOfMemory
from ..cause import Cause, Remedy, Results
from ..changes import EditedSource
from ..evidence import is_much, named_with_line
from ..rewriting import (
    Rewriting,
    changed_code,
    changed_source,
    last_name,
    loaded_names,
    name_of_call,
    nodes_of,
    program_files,
    rewritings,
    set_keywords,
    stored_names,
)

_COPIES = ("deepcopy", "clone", "copy", "load", "AveragedModel")
_PARAMETERS = ("parameters", "named_parameters", "buffers", "named_buffers", "state_dict")


class ModelTwice(Cause):
    """A checkpoint or a copy has all parameters once more."""

    name = "a second copy of the parameters"
    order = 120
    results = Results.ROUNDING

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        copy = second_copy(oom)
        if copy is None:
            return None
        name, size = copy
        change = _on_cpu(oom, name)
        line = min((edit.first for edit in change.edits), default=0) if change else 0
        return self.found(
            size,
            f"{named_with_line(name, line)} is a second copy of the parameters: {prose_size(size)}",
            *(changed_code(change) or [f'{name} on the CPU: map_location="cpu", or .cpu()']),
            change=change,
        )


def second_copy(oom: OutOfMemory) -> tuple[str, int] | None:
    """The variable that holds the parameters once more, and its bytes."""
    parameters = Counter(
        (block.shape, block.dtype)
        for block in oom.blocks
        if block.category is Category.PARAMETERS and block.shape
    )
    for name, blocks in _containers(oom).items():
        shapes = Counter((block.shape, block.dtype) for block in blocks)
        same = sum((shapes & parameters).values())
        size = sum(block.size for block in blocks)
        if same >= 2 and 2 * same > sum(shapes.values()) and is_much(size, oom):
            return name, size
    owners: dict[str, Counter[tuple[int, ...]]] = {}
    sizes = Counter[str]()
    for block in oom.blocks:
        if block.category is Category.PARAMETERS and "." in block.name:
            owner = re.split(r"[.\[]", block.name)[0]
            owners.setdefault(owner, Counter())[block.shape] += 1
            sizes[owner] += block.size
    for name, own in owners.items():
        others = [other for other, theirs in owners.items() if other != name and theirs <= own]
        if others and is_much(sizes[name], oom) and _is_copied(oom, name):
            return name, sizes[name]
    return None


def _is_copied(oom: OutOfMemory, name: str) -> bool:
    """True if a variable is made as a copy, or gets the parameters of something else."""
    for file in program_files(oom):
        for node in ast.walk(Rewriting(file).tree):
            match node:
                case ast.Assign(value=value) if last_name(node.targets[0]) == name:
                    if any(name_of_call(one) in _COPIES for one in nodes_of(value, ast.Call)):
                        return True
                case ast.Call(
                    func=ast.Attribute(value=owner, attr="load_state_dict"), args=[value]
                ):
                    is_copy = any(name_of_call(one) == "state_dict" for one in ast.walk(value))
                    if last_name(owner) == name and is_copy:
                        return True
    return False


def _containers(oom: OutOfMemory) -> dict[str, list[BlockInUse]]:
    """Tensors that are no parameters, by the container that leads to them."""
    containers: dict[str, list[BlockInUse]] = {}
    for block in oom.blocks:
        name, bracket, _ = block.name.partition("[")
        if bracket and block.category in (Category.OTHERS, Category.SAVED):
            containers.setdefault(name, []).append(block)
    if any("serialization" in file for _, file in oom.functions) and oom.frames:
        target = re.match(r"\s*(\w+)\s*=", oom.frames[0].place.source)
        if target is not None:  # while it is read nothing leads to it
            containers[target[1]] = [
                block
                for block in oom.blocks
                if block.category is Category.OTHERS and block.shape and not block.name
            ]
    return containers


def _on_cpu(oom: OutOfMemory, name: str) -> EditedSource | None:
    """The program with the copy in host memory; None if it computes with the copy on the GPU."""
    own = name.rpartition(".")[2]
    files = list(rewritings(oom))
    is_made = [_make_on_cpu(file, own) for file in files]
    if not any(is_made) or any(_is_called(file.tree, own) for file in files):
        return None
    for file in files:
        for loop in nodes_of(file.tree, ast.For):
            _update_on_cpu(file, loop, own)
    return changed_source(*(file for file in files if file.is_changed))


def _make_on_cpu(file: Rewriting, name: str) -> bool:
    """Rewrite the statements that make a copy; True if there are any."""
    count = 0
    for node in nodes_of(file.tree, ast.Assign):
        if last_name(node.targets[0]) != name:
            continue
        for call in nodes_of(node.value, ast.Call):
            match call.func:
                case ast.Attribute(value=value, attr="clone"):
                    file.replace(call, f"{ast.unparse(value)}.cpu()")
                case ast.Attribute(attr="deepcopy") | ast.Name(id="deepcopy"):
                    file.insert_after(call, ".cpu()")
                case ast.Attribute(value=ast.Name(id="torch"), attr="load"):
                    set_keywords(file, call, map_location='"cpu"')
                case ast.Attribute(attr="AveragedModel") | ast.Name(id="AveragedModel"):
                    set_keywords(file, call, device='"cpu"')
                case _:
                    continue
            count += 1
    return count > 0


def _is_called(tree: ast.AST, name: str) -> bool:
    """True if the copy computes: it is called, or what a loop over several of it gives."""
    names = {name}
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.comprehension)) and last_name(node.iter) == name:
            names |= stored_names(node.target)
    return any(last_name(call.func) in names for call in nodes_of(tree, ast.Call))


def _update_on_cpu(file: Rewriting, loop: ast.For, name: str) -> None:
    """Copy the parameters that a loop adds to the copy of them."""
    parameters = _names_of_parameters(loop, name)
    is_with_copy = any(last_name(node) == name for node in ast.walk(loop)) or name in _roots(
        file.tree, loop
    )
    if not parameters or not is_with_copy:
        return
    parents = {id(child): node for node in ast.walk(loop) for child in ast.iter_child_nodes(node)}
    for statement in nodes_of(loop, ast.stmt):
        is_update = isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign))
        if not is_update or _is_made_here(statement, name):
            continue
        for node in nodes_of(statement, ast.Name):
            if node.id not in parameters or not isinstance(node.ctx, ast.Load):
                continue
            whole: ast.AST = node
            while isinstance(parents[id(whole)], ast.Attribute) and getattr(
                parents[id(whole)], "attr", ""
            ) in ("data", "detach"):
                whole = parents[id(whole)]
            if isinstance(parents[id(whole)], ast.Call):
                call = parents[id(whole)]
                if isinstance(call, ast.Call) and call.func is whole:
                    whole = call
            above = parents[id(whole)]
            is_read = isinstance(whole, ast.expr) and isinstance(
                getattr(whole, "ctx", ast.Load()), ast.Load
            )
            if is_read and not isinstance(above, ast.Attribute) and isinstance(whole, ast.expr):
                file.insert_after(whole, ".cpu()")


def _is_made_here(statement: ast.stmt, name: str) -> bool:
    """True for ``shadow[name] = p.clone()``, which is rewritten already."""
    return isinstance(statement, ast.Assign) and (
        last_name(statement.targets[0]) == name
        and any(name_of_call(one) in _COPIES for one in nodes_of(statement.value, ast.Call))
    )


def _names_of_parameters(loop: ast.For, copy: str) -> set[str]:
    """Variables of a loop that are parameters of the model, not of the copy."""
    pairs = [(loop.target, loop.iter)]
    if name_of_call(loop.iter) == "zip" and isinstance(loop.target, ast.Tuple):
        assert isinstance(loop.iter, ast.Call)
        pairs = list(zip(loop.target.elts, loop.iter.args, strict=False))
    names: set[str] = set()
    roots = {copy}
    for target, source in pairs:
        calls = [one for one in nodes_of(source, ast.Call) if name_of_call(one) in _PARAMETERS]
        owners = {
            last_name(call.func.value) for call in calls if isinstance(call.func, ast.Attribute)
        }
        if calls and not owners & roots:
            last = target.elts[-1] if isinstance(target, ast.Tuple) else target
            names |= stored_names(last)
    return names


def _roots(tree: ast.AST, loop: ast.For) -> set[str]:
    """Containers whose items a loop around another one takes: ``for average in averages``."""
    used = loaded_names(loop.iter)
    found: set[str] = set()
    for outer in nodes_of(tree, ast.For):
        if outer is not loop and stored_names(outer.target) & used:
            found |= loaded_names(outer.iter)
    return found
