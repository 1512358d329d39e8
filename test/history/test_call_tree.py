"""The tree of calls: a call has the bytes of the stacks through it, side by side in its caller."""

from __future__ import annotations

from pytorch_memlab.history.holders import CallNode, call_tree
from pytorch_memlab.history.model import Frame

MAIN, MODEL, STEP = (
    Frame("train.py", line, name) for line, name in ((3, "main"), (5, "f"), (9, "step"))
)
OTHER = Frame("train.py", 4, "main")


def test_calls_nest_and_the_largest_comes_first():
    stacks = [((STEP, MAIN), 10), ((MODEL, MAIN), 30), ((MAIN,), 5), ((MODEL, OTHER), 7), ((), 1)]
    assert call_tree(stacks) == [
        CallNode(None, 0, 0, 53),
        CallNode(MAIN, 1, 0, 45),
        CallNode(MODEL, 2, 0, 30),
        CallNode(STEP, 2, 30, 10),
        CallNode(OTHER, 1, 45, 7),
        CallNode(MODEL, 2, 45, 7),
    ]


def test_no_stack_is_a_root_alone():
    assert call_tree([]) == [CallNode(None, 0, 0, 0)]


def test_a_recursion_deeper_than_pythons_own_limit():
    deep = call_tree([((STEP,) * 5000, 2)])
    assert len(deep) == 5001
    assert deep[-1] == CallNode(STEP, 5000, 0, 2)
