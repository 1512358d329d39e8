"""A container keeps results on the GPU."""

from __future__ import annotations

import ast
from dataclasses import replace

from ..._common.text.prose_size import prose_size
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory, TensorGroup
from ..additions import (
    AddingStatement,
    adding_statement,
    filled_beside,
    keep_less,
    keeping_less,
)
from ..cause import Cause, Remedy, Results
from ..changes import EditedSource
from ..evidence import is_much, named_with_line
from ..forward_only import reaches_backward
from ..read_back import read_on_gpu
from ..rewriting import changed_code, changed_source, nodes_of, rewritings
from .model_twice import second_copy


class KeptResults(Cause):
    """Tensors in a container stay on the GPU."""

    name = "a list of results"
    order = 150
    results = Results.SAME

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        for group in oom.groups:
            is_container = not group.is_variable and group.tensors >= 3
            if not is_container or group.own < group.graphs or not is_much(group.own, oom):
                continue
            if _saved(oom, group) * 2 > group.own:  # a backward pass reads them on the GPU
                continue
            copy = second_copy(oom)
            if copy is not None and copy[0] == group.name:
                continue
            added = adding_statement(oom, group)
            beside = filled_beside(oom, group)
            change = _on_host(oom, [group, *beside])
            size = group.own + sum(other.own for other in beside)
            names = [named_with_line(group.name, 0 if added is None else added.line)]
            names += [other.name for other in beside]
            remedy = self.found(
                size,
                f"{' and '.join(names)} {'keep' if beside else 'keeps'}"
                f" {group.tensors + sum(other.tensors for other in beside)} tensors on the GPU:"
                f" {prose_size(size)}",
                *(changed_code(change) or [_code(oom, group, added)]),
                change=change,
            )
            # The program may compute with what it reads from the container.
            read = None if change is None else _read_back(oom, group)
            if (
                added is not None
                and read is not None
                and reaches_backward(added.file.file, added.line)
            ):
                # What is read goes to the GPU again, so that what it meets may stay there.
                moved = self.found(
                    group.own,
                    f"{names[0]} keeps {group.tensors} tensors on the GPU: {prose_size(group.own)}",
                    *changed_code(read),
                    change=read,
                )
                return replace(moved, otherwise=remedy)
            if beside or read is None:
                return remedy
            return replace(remedy, otherwise=replace(remedy, code=changed_code(read), change=read))
        return None


def _code(oom: OutOfMemory, group: TensorGroup, added: AddingStatement | None) -> str:
    is_result = any(
        isinstance(node.value, ast.Call) and group.name in map(ast.unparse, node.targets)
        for file in rewritings(oom)
        for node in nodes_of(file.tree, ast.Assign)
    )
    # The result of a call, such as the output of a model, is no container that statements fill.
    if is_result and added is None:
        return f"del {group.name}  # where it is read last"
    return f"keep copies in host memory in {group.name}: .cpu()"


def _on_host(oom: OutOfMemory, groups: list[TensorGroup]) -> EditedSource | None:
    """Containers whose tensors go to the host together: what reads them reads all of them."""
    changes = [keeping_less(oom, group, "cpu") for group in groups]
    edits = dict.fromkeys(edit for change in changes if change is not None for edit in change.edits)
    return EditedSource([*edits]) if None not in changes else None


def _read_back(oom: OutOfMemory, group: TensorGroup) -> EditedSource | None:
    """A container in host memory, what is read of which goes to the GPU again."""
    adding = adding_statement(oom, group)
    if adding is None:
        return None
    keep_less(oom, group, adding, "cpu")
    is_read = read_on_gpu(adding)
    adding.file.ensure_import("torch")
    return changed_source(adding.file) if is_read else None


def _saved(oom: OutOfMemory, group: TensorGroup) -> int:
    """Bytes of a group that autograd keeps too."""
    return sum(
        block.size
        for block in oom.blocks
        if block.category is Category.SAVED and block.name.startswith(f"{group.name}[")
    )
