"""Single blocks on a page: those in use at a moment, with their stacks, and those of a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .._common.text.quoted import printable
from .._common.text.shared_paths import shown
from ..history.block_lives import BlockLife, BlockLives, block_lives
from ..history.holders import charged_frame
from ..history.model import AllocationHistory, Category, Frame, UsedBlock
from .page import Fragment, fill, script_data
from .rows import place, source_line

if TYPE_CHECKING:
    from ..history.timeline import Timeline

_MOST_BLOCKS: Final = 1000


def fragment(number: int, history: AllocationHistory, timeline: Timeline) -> Fragment:
    """The blocks of one device as a part of a page; a timeline above it chooses the moment."""
    lives = block_lives(history, timeline.device, _MOST_BLOCKS)
    peak = timeline.points[timeline.peak] + 1
    html = fill(
        "blocks.html", number=number, left_out=lives.left_out, data=_data(lives, history, peak)
    )
    return Fragment(html, "blocks.css", ("sizes.js", "blocks.js"))


class _Numbers(dict[Any, int]):
    """The number of each value, in the order in which they come."""

    def __missing__(self, key: Any) -> int:
        self[key] = len(self)
        return self[key]


def _data(lives: BlockLives, history: AllocationHistory, peak: int) -> str:
    frames: _Numbers = _Numbers()
    stacks: _Numbers = _Numbers()
    modules: _Numbers = _Numbers()

    def row(life: BlockLife) -> list[int]:
        stack = () if life.stack is None else history.stacks[life.stack]
        return [
            life.size,
            life.born,
            -1 if life.died is None else life.died,
            stacks[stack],
            stacks[history.stacks[life.forward] if life.forward else ()],
            frames[_line(life, history)],
            life.category.number,
            modules[life.module],
        ]

    blocks = [row(life) for life in lives.blocks]
    numbered = [[frames[frame] for frame in stack] for stack in stacks]
    return script_data(
        {
            "peak": peak,
            "blocks": blocks,
            "stacks": numbered,
            "frames": [_frame(frame) for frame in frames],
            "categories": [category.value for category in Category],
            "modules": [printable(module) for module in modules],
        }
    )


def _line(life: BlockLife, history: AllocationHistory) -> Frame:
    block = UsedBlock(0, 0, 0, life.stack, life.forward)
    return charged_frame(block, history.stacks)[0]


def _frame(frame: Frame) -> list[str | int]:
    """Its file as the page names it, its line, and what is shown of it."""
    file, line, name = frame
    return [
        shown(file) if file else "",
        line,
        place(file, line, name, " ") if file else "no line",
        printable(source_line(file, line)) if file else "",
    ]
