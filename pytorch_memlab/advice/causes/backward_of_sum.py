"""One backward pass of a sum of losses: until then the sum keeps the graph of each."""

from __future__ import annotations

import ast
from typing import Final

from ..._common.text.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..cause import Cause, Remedy, Results
from ..changes import EditedSource
from ..evidence import is_much, named_with_line
from ..lines_to_edit import blocks
from ..rewriting import changed_code, changed_source, name_of_call, nodes_of, with_method
from ..running_sums import Addition, addition_to, expressions_in

_CLEARING: Final = "zero_grad"
_UPDATE: Final = "step"


class BackwardOfSum(Cause):
    """The gradient of a sum is the sum of the gradients, which ``backward`` adds up itself."""

    name = "one backward pass for several losses"
    order = 51
    results = Results.ROUNDING

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        for group in oom.groups:
            graphs = group.graphs - group.graphs // max(group.running_sums, 1)  # one is needed
            if group.running_sums < 2 or not is_much(graphs, oom):
                continue
            addition = addition_to(oom, group.name)
            if addition is None or addition.backward is None:
                continue
            change = _backward_of_each(addition, addition.backward)
            return self.found(
                graphs,
                f"{named_with_line(group.name, addition.line)} keeps the graphs of"
                f" {group.running_sums} losses until its backward pass:"
                f" {prose_size(group.graphs)}",
                *(changed_code(change) or ["loss.backward()  # of each loss, not of their sum"]),
                change=change,
            )
        return None


def _backward_of_each(addition: Addition, backward: ast.Call) -> EditedSource | None:
    """The program with a backward pass behind each loss; None where that cannot be written."""
    file, added = addition.file, addition.added
    body, position = _body_of(file.tree, backward)
    loss = _loss_of(addition)
    of_each = _of_loss(backward, addition.sum, loss)
    if not body or not of_each or addition.sum in expressions_in(added):
        return None
    if not _clear_after_update(addition, body, position):
        return None
    column = addition.node.col_offset
    computed = [] if loss is added else [f"{ast.unparse(loss)} = {ast.unparse(added)}"]
    file.insert_lines(addition.line, column, [*computed, of_each])
    file.replace(added, with_method(loss, "detach"))
    if len(body) == 1:
        file.replace(body[position], "pass")
    else:
        file.delete(body[position])
    return changed_source(file)


def _loss_of(addition: Addition) -> ast.expr:
    """The value that is added; a new variable for it where it is no variable yet."""
    if isinstance(addition.added, (ast.Name, ast.Attribute)):
        return addition.added
    names = {name.id for name in nodes_of(addition.file.tree, ast.Name)}
    name = "part"
    while name in names:
        name += "_of_sum"
    return ast.Name(name)


def _body_of(tree: ast.Module, call: ast.Call) -> tuple[list[ast.stmt], int]:
    """The statements beside a call that is a statement alone in its line, and its place in them."""
    for block in blocks(tree):
        for position, statement in enumerate(block):
            if isinstance(statement, ast.Expr) and statement.value is call:
                lines = [other.lineno for other in block]
                return (block, position) if lines.count(call.lineno) == 1 else ([], 0)
    return [], 0


def _of_loss(backward: ast.Call, sum_name: str, loss: ast.expr) -> str:
    """The call with a loss in place of the sum; empty where it may not be linear in the sum."""
    assert isinstance(backward.func, ast.Attribute)
    scaled = loss
    match backward.func.value:
        case ast.BinOp(left=inner, op=ast.Mult() | ast.Div() as op, right=right):
            scaled = ast.BinOp(scaled, op, right)
            if sum_name in expressions_in(right):
                return ""
        case ast.Call(func=ast.Attribute(attr="scale") as scale, args=[inner], keywords=[]):
            scaled = ast.Call(scale, [scaled], [])
        case inner:
            pass
    if ast.unparse(inner) != sum_name or backward.args or backward.keywords:
        return ""
    return with_method(scaled, "backward")


def _clear_after_update(addition: Addition, body: list[ast.stmt], position: int) -> bool:
    """Let gradients be cleared after the update, not between the losses and it."""
    between = [
        statement
        for statement in body[:position]
        if statement.lineno > addition.line and _calls(statement, _CLEARING)
    ]
    updates = [statement for statement in body[position:] if _calls(statement, _UPDATE)]
    calls = [
        call
        for call in nodes_of(addition.file.tree, ast.Call)
        if name_of_call(call) == _CLEARING and addition.line < call.lineno < body[position].lineno
    ]
    if len(calls) != len(between) or (between and not updates):
        return False
    for statement in between:
        addition.file.delete(statement)
        after = (updates[-1].end_lineno or 0) + 1
        addition.file.insert_lines(after, statement.col_offset, [ast.unparse(statement)])
    return True


def _calls(statement: ast.stmt, name: str) -> bool:
    return isinstance(statement, ast.Expr) and name_of_call(statement.value) == name
