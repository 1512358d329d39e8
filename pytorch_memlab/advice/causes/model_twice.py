"""The GPU holds a second copy of the parameters."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator

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
_COPIED = "memo["  # of the table in which deepcopy keeps what it has copied
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
        words = "keeps copies" if _keeps_models(oom, name) else "is a second copy"
        line = min((edit.first for edit in change.edits), default=0) if change else 0
        return self.found(
            size,
            f"{named_with_line(name, line)} {words} of the parameters: {prose_size(size)}",
            *(changed_code(change) or [f'{name} on the CPU: map_location="cpu", or .cpu()']),
            change=change,
        )


def second_copy(oom: OutOfMemory) -> tuple[str, int] | None:
    """The variable that holds the parameters once more, and its bytes."""
    parameters = Counter(
        (block.shape, block.dtype)
        for block in oom.blocks
        if block.category is Category.PARAMETERS
        and block.shape
        and not block.name.startswith(_COPIED)
    )
    for name, blocks in _containers(oom).items():
        shapes = Counter((block.shape, block.dtype) for block in blocks)
        same = sum((shapes & parameters).values())
        size = sum(block.size for block in blocks)
        is_like_parameters = same >= 2 and 2 * same > sum(shapes.values())
        if is_like_parameters and is_much(size, oom) and not _gets_results(oom, name):
            return name, size
    owners: dict[str, Counter[tuple[int, ...]]] = {}
    sizes = Counter[str]()
    for block in oom.blocks:
        if block.category is Category.PARAMETERS and "." in block.name:
            owner = re.split(r"[.\[]", block.name)[0]
            owners.setdefault(owner, Counter())[block.shape] += 1
            sizes[owner] += block.size
    for is_copy in (_is_copied, _is_loaded):
        for name, own in owners.items():
            others = [other for other, theirs in owners.items() if other != name and theirs <= own]
            if others and is_much(sizes[name], oom) and is_copy(oom, name):
                return name, sizes[name]
    return None


def _gets_results(oom: OutOfMemory, name: str) -> bool:
    """True if what is appended to a variable are no copies: it has the shape of parameters."""
    last = name.rpartition(".")[2]
    appended = [
        value
        for file in program_files(oom)
        for owner, value in _appended(Rewriting(file).tree)
        if owner == last
    ]
    return bool(appended) and not any(name_of_call(call) in _COPIES for call in _calls_in(appended))


def _keeps_models(oom: OutOfMemory, name: str) -> bool:
    return any(
        block.category is Category.PARAMETERS and block.name.startswith(f"{name}[")
        for block in oom.blocks
    )


def _is_copied(oom: OutOfMemory, name: str) -> bool:
    """True if a variable is made as a copy, or holds copies."""
    return any(
        name_of_call(call) in _COPIES
        for file in program_files(oom)
        for call in _calls_in(_values_of(Rewriting(file).tree, name))
    )


def _is_loaded(oom: OutOfMemory, name: str) -> bool:
    """True if a variable gets the parameters of another one."""
    for file in program_files(oom):
        for call in nodes_of(Rewriting(file).tree, ast.Call):
            match call:
                case ast.Call(
                    func=ast.Attribute(value=owner, attr="load_state_dict"), args=[value]
                ):
                    is_copy = any(name_of_call(call) == "state_dict" for call in ast.walk(value))
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
    target = _name_of_deepcopy(oom)
    if target:  # while it is made only the table of deepcopy leads to its tensors
        names = (_COPIED, f"{target}.", f"{target}[")
        containers.pop(_COPIED[:-1], None)
        containers[target] = [block for block in oom.blocks if block.name.startswith(names)]
    if any("serialization" in file for _, file in oom.functions) and oom.frames:
        loaded = re.match(r"\s*(\w+)\s*=", oom.frames[0].place.source)
        if loaded is not None:  # while it is read nothing leads to it
            containers[loaded[1]] = [
                block
                for block in oom.blocks
                if block.category is Category.OTHERS and block.shape and not block.name
            ]
    return containers


def _name_of_deepcopy(oom: OutOfMemory) -> str:
    """The variable that gets the copy which ``deepcopy`` was making; empty if it made none."""
    if not any(function == "deepcopy" for function, _ in oom.functions) or not oom.frames:
        return ""
    place = oom.frames[0].place
    for name, value in _given(Rewriting(place.file).tree):
        is_here = value.lineno <= place.line <= (value.end_lineno or value.lineno)
        if is_here and any(name_of_call(call) == "deepcopy" for call in _calls_in([value])):
            return name
    return ""


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
    for value in _values_of(file.tree, name):
        for call in nodes_of(value, ast.Call):
            match call.func:
                case ast.Attribute(value=cloned, attr="clone"):
                    file.replace(call, f"{ast.unparse(cloned)}.cpu()")
                case ast.Attribute(attr="deepcopy") | ast.Name(id="deepcopy"):
                    _copy_to_cpu(file, call)
                case ast.Attribute(value=ast.Name(id="torch"), attr="load"):
                    set_keywords(file, call, map_location='"cpu"')
                case ast.Attribute(attr="AveragedModel") | ast.Name(id="AveragedModel"):
                    set_keywords(file, call, device='"cpu"')
                case _:
                    continue
            count += 1
    return count > 0


def _calls_in(nodes: Iterable[ast.expr]) -> Iterator[ast.Call]:
    return (call for node in nodes for call in nodes_of(node, ast.Call))


def _values_of(tree: ast.AST, name: str) -> Iterator[ast.expr]:
    """The values that a variable gets, and those that are appended to it."""
    return (value for value_name, value in _given(tree) if value_name == name)


def _given(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The variables that statements give a value or append one to, and the value."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if len(
                targets
            ) == len(values):
                yield from zip(map(last_name, targets), values, strict=True)
            case ast.Assign(targets=[target, *_], value=value):
                yield last_name(target), value
    yield from _appended(tree)


def _appended(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The variables that get another value, and the value."""
    for call in nodes_of(tree, ast.Call):
        match call:
            case ast.Call(func=ast.Attribute(value=owner, attr="append"), args=[value]):
                yield last_name(owner), value


def _copy_to_cpu(file: Rewriting, deepcopy: ast.Call) -> None:
    """Rewrite a ``deepcopy`` so that its result is in host memory."""
    match deepcopy.args:
        case [ast.Call(func=ast.Attribute(attr="state_dict")) as state]:
            items = f"{ast.unparse(state)}.items()"
            file.replace(deepcopy, f"{{key: value.cpu() for key, value in {items}}}")
        case _:
            file.insert_after(deepcopy, ".cpu()")


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
        and any(name_of_call(call) in _COPIES for call in nodes_of(statement.value, ast.Call))
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
        calls = [call for call in nodes_of(source, ast.Call) if name_of_call(call) in _PARAMETERS]
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
    names: set[str] = set()
    for outer in nodes_of(tree, ast.For):
        if outer is not loop and stored_names(outer.target) & used:
            names |= loaded_names(outer.iter)
    return names
