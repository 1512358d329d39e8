"""Tensors of 64 bits for each number."""

from __future__ import annotations

import ast

from ..._common.text.prose_size import prose_size
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory
from ..cause import Cause, Remedy, Results, at_line
from ..changes import EditedSource
from ..evidence import is_much
from ..rewriting import (
    Rewriting,
    changed_code,
    changed_source,
    name_of_call,
    nodes_of,
    rewritings,
    with_method,
)

_DOUBLE = ("torch.float64", "torch.double")
_MOVES = ("cuda", "to")


class DoublePrecision(Cause):
    """Most numbers have 64 bits, by NumPy's default or by choice."""

    name = "numbers of 64 bits"
    order = 35
    results = Results.ROUNDING

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        size = sum(block.size for block in oom.blocks if block.dtype == "float64")
        if not size or size * 2 < sum(block.size for block in oom.blocks if block.dtype):
            return None
        size += sum(  # made of these
            block.size
            for block in oom.blocks
            if not block.dtype and block.category is Category.TEMPORARIES
        )
        if not is_much(size // 2, oom):
            return None
        change = _in_single(oom)
        line = change.edits[0].first if change is not None else 0
        return self.found(
            size // 2,
            f"{prose_size(size)} are float64{at_line(line)}, twice as large as float32",
            *(changed_code(change) or ("tensor.float()  # and model.float()",)),
            effect="other rounding: float32 in place of float64",
            change=change,
        )


def _in_single(oom: OutOfMemory) -> EditedSource | None:
    """The program with float32 where it asks for float64, and where such tensors are moved."""
    files = list(rewritings(oom))
    is_default = [_rename_types(file) for file in files]
    if not any(is_default):
        for file in files:
            _move_as_float(file, oom)
    return changed_source(*(file for file in files if file.is_changed))


def _rename_types(file: Rewriting) -> bool:
    """Rename the type, and ``double()``; True if it is the type by default."""
    is_default = False
    for node in nodes_of(file.tree, ast.expr):
        match node:
            case ast.Attribute() if ast.unparse(node) in _DOUBLE:
                file.replace(node, "torch.float32")
            case ast.Call(func=ast.Attribute(value=value, attr="double"), args=[]):
                file.replace(node, with_method(value, "float"))
            case ast.Call() if name_of_call(node) in (
                "set_default_dtype",
                "set_default_tensor_type",
            ):
                is_default = True
    return is_default


def _move_as_float(file: Rewriting, oom: OutOfMemory) -> None:
    """Tensors from the host become float32 before they are moved."""
    lines = {
        block.place.line
        for block in oom.blocks
        if block.dtype == "float64"
        and block.place is not None
        and block.place.file == file.file
        and block.category is not Category.PARAMETERS
    }
    for node in nodes_of(file.tree, ast.Call):
        is_there = any(line in lines for line in range(node.lineno, (node.end_lineno or 0) + 1))
        if is_there and name_of_call(node) in _MOVES and isinstance(node.func, ast.Attribute):
            file.insert_after(node.func.value, ".float()")
