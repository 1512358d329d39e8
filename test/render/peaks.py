"""Peaks that tests render."""

from __future__ import annotations

from timelines import HOSTILE

from pytorch_memlab.history.holders import PeakHolders
from pytorch_memlab.history.model import Category, Frame, UsedBlock
from pytorch_memlab.history.peak import Peak

MIB = 2**20
MAIN = Frame("/nowhere/train.py", 3, "main")
FORWARD = Frame("/nowhere/model.py", 7, "forward")
LINEAR = Frame("/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", 134, "forward")
ENGINE = Frame(
    "/venv/lib/python3.11/site-packages/torch/autograd/graph.py", 5, "_engine_run_backward"
)
STACKS = [(), (MAIN,), (LINEAR, FORWARD, MAIN), (ENGINE, MAIN)]


def holders_of(blocks, stacks=STACKS, device=0):
    active = sum(block.size for block in blocks)
    return PeakHolders(Peak(device, active, 2 * active, 4, 9, tuple(blocks)), stacks)


def block(address, mib, stack, category=Category.UNKNOWN, module="", forward=0):
    return UsedBlock(address, mib * MIB, mib * MIB, stack, forward, category, module)


SMALL = holders_of(
    [
        block(0, 8, 1, Category.PARAMETERS),
        block(1, 4, 2, Category.SAVED, "Net.0"),
        block(2, 2, 2, Category.TEMPORARIES, "Net.1"),
        block(3, 1, 3, Category.GRADIENTS, "Net.0", forward=2),
        block(4, 1, None),
    ]
)


def hostile():
    """A peak all of whose names try to leave their place."""
    frame = Frame(f"/nowhere/{HOSTILE};.py", 1, HOSTILE)
    return holders_of([block(0, 1, 1, module=f"{HOSTILE}.0")], [(), (frame,)])
