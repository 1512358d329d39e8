"""Finds attention that a function writes out, and the call in its place."""

from __future__ import annotations

import ast
import linecache

from ..rewriting import function_at
from .program_function import names_after, names_beside, spans, statements_in
from .reader import AttentionReader
from .returned_weights import returned_for_nothing, without_returned_weights
from .written_call import FusedAttention, with_fused_call


def fused_attention(
    file: str,
    line: int,
    *,
    # True if the scores have four dimensions. With three, a dimension is added, since no fused
    # kernel takes three.
    has_heads: bool,
) -> FusedAttention | None:
    """The call that replaces the attention of the function around the line with the softmax."""
    lines = [text.rstrip("\r\n") for text in linecache.getlines(file)]
    try:
        tree = ast.parse("\n".join(lines))
    except (SyntaxError, ValueError):
        return None
    function = function_at(tree, line)
    if function is None:
        return None
    reader = AttentionReader(tree, function, has_heads=has_heads)
    for statement, condition in statements_in(function.body):
        output = reader.read(statement, condition)
        if output is not None:
            used_again = names_after(function, statement) & reader.names_of_scores()
            used_again |= names_beside(statement, output.node) & reader.names_of_scores()
            returned = None
            if used_again:
                returned = returned_for_nothing(tree, function, statement, used_again)
            if (used_again and returned is None) or not spans(reader.reading.statements, line):
                return None
            written = with_fused_call(
                file, lines, tree, statement, output, reader.reading, has_heads
            )
            if written is None or returned is None:
                return written
            return without_returned_weights(written, lines, statement, returned)
    return None
