"""The holders of the memory at a peak: bytes by source line, function or stack."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from .._common.frames.user_code import is_of_user, path_of_library
from .._common.process.ipython import file_name, source_name
from .._common.text.displayed import Displayed
from .._common.text.prose_size import prose_size
from .._common.text.quoted import quoted, visible
from ..errors import UsageError
from .model import AllocationHistory, Event, Frame, Stack, UsedBlock
from .peak import Peak, find_peak

if TYPE_CHECKING:
    import pandas as pd


K = TypeVar("K")

ENGINE: Final = "_engine_run_backward"
"""The function of torch that runs the backward pass."""

_TORCH: Final = ("site-packages/torch/", "dist-packages/torch/")

_DEEPEST: Final = 64
"""Modules around each other in a tree: each has the path of all around it. The last one has the
rest of a longer path for its name."""

BEFORE = "allocated before the recording"
NO_FRAMES = "no Python frame"
NO_MODULE = "outside of modules, or not known"
"""Names for what has no place, no frame and no module."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A place whose allocations are in use at a peak."""

    file: str  # of the source; empty if the place is not known
    line: int | None  # its number; None for a whole function, 0 if the place is not known
    function: str
    size: int
    blocks: int
    backward: int = 0  # those of the bytes that the backward pass of the place allocated


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a peak that has a name: a category, or a module."""

    name: str  # of the category, or path of the module; empty for what no module made
    size: int
    blocks: int
    backward: int = 0  # those of the bytes that the backward pass allocated for a forward op


@dataclass(frozen=True, slots=True)
class LineDetails:
    """A line of the program that holds memory at a peak, and what the memory is."""

    holder: Holder  # the line and its bytes
    categories: tuple[Share, ...]  # its bytes by category, the largest first
    modules: tuple[Share, ...]  # its bytes by path of the module, the largest first


@dataclass(frozen=True, slots=True)
class ModuleNode:
    """A module in the tree of modules, with the bytes that it and its parts hold at a peak."""

    # its name in the module around it, or the type of the outermost module; empty for the root,
    # whose own bytes are those that no module made
    name: str
    path: str  # from the outermost module on, such as ``GPT.blocks.3.attn``; empty for the root
    own: int  # bytes that it holds itself
    total: int
    children: tuple[ModuleNode, ...] = ()

    def __repr__(self) -> str:
        """The bytes that it holds itself and in all, and the number of its modules."""
        inner = (
            f", with {', '.join(child.name for child in self.children)}" if self.children else ""
        )
        own = f"{prose_size(self.own)} itself, {prose_size(self.total)} in all"
        return f"<{type(self).__name__} {self.path or 'of all'}: {own}{inner}>"


@dataclass(frozen=True, slots=True, repr=False)
class PeakHolders(Displayed):
    """The holders of a GPU's memory at its peak."""

    peak: Peak  # the moment
    stacks: Sequence[Stack]  # of the history, which the blocks of the peak name by their index

    def by_line(self) -> list[Holder]:
        """Bytes by line of the program, the largest first; they add up to the peak.

        What the backward pass allocates counts at the line of the forward op, if that is known.
        """
        return _holders(self._sums(lambda _, frame: frame))

    def below(self, line: Holder) -> list[Holder]:
        """Lines of libraries that a line of the program calls, with the bytes that they made.

        Args:
            line: a row of ``by_line``.

        Returns:
            The innermost line outside of torch of each block, the largest first. Bytes that the
            line made itself, or by torch alone, are left out.
        """
        sizes: defaultdict[tuple[str, int | None, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        for block in self.peak.blocks:
            frame, is_forward = charged_frame(block, self.stacks)
            if (frame.filename, frame.line, frame.name) == (line.file, line.line, line.function):
                stack = self.stacks[(block.forward if is_forward else block.stack) or 0]
                inner = _innermost_of_library(stack)
                if inner is not None:
                    totals = sizes[inner]
                    totals[0] += block.size
                    totals[1] += 1
                    totals[2] += is_forward * block.size
        return _holders(sizes)

    def by_function(self) -> list[Holder]:
        """Bytes by function of the program, the largest first; they add up to the peak.

        What the backward pass allocates counts at the function of the forward op, if it is known.
        """
        return _holders(self._sums(lambda _, frame: (frame.filename, None, frame.name)))

    def backward_calls(self) -> list[Holder]:
        """Lines that ran the backward pass, with the bytes that count at lines of forward ops.

        Returns:
            The largest first. The bytes are part of those of ``by_line``, and not more.
        """
        blocks = [block for block in self.peak.blocks if charged_frame(block, self.stacks)[1]]
        return _holders(self._sums(lambda block, _: _place(block, self.stacks), blocks))

    def line_details(self) -> list[LineDetails]:
        """The rows of ``by_line``, each with its bytes by category and by module."""
        blocks: defaultdict[Frame, list[UsedBlock]] = defaultdict(list)
        for block in self.peak.blocks:
            blocks[charged_frame(block, self.stacks)[0]].append(block)
        details = []
        for holder in self.by_line():
            frame = Frame(holder.file, holder.line or 0, holder.function)
            part = PeakHolders(replace(self.peak, blocks=tuple(blocks[frame])), self.stacks)
            details.append(LineDetails(holder, tuple(part.by_category()), tuple(part.by_module())))
        return details

    def private_lines(self) -> tuple[tuple[str, int], ...]:
        """Files and lines whose requests let private pools take memory, as far as known."""
        frames = (innermost_of_user(self.stacks[stack]) for stack in self.peak.private_stacks)
        return tuple(dict.fromkeys((frame.filename, frame.line) for frame in frames))

    def by_category(self) -> list[Share]:
        """Bytes by category, the largest first; they add up to the peak."""
        return self._shares(lambda block: block.category.value)

    def by_module(self) -> list[Share]:
        """Bytes by path of the module that made them, the largest first; they add up to the peak.

        A module's bytes are its own, without those of the modules in it. What the backward pass
        allocates counts at the module of the forward op, if that is known.
        """
        return self._shares(lambda block: block.module)

    def module_tree(self) -> ModuleNode:
        """Bytes by module as a tree; the total of the root is the peak."""
        own = {share.name: share.size for share in self.by_module()}
        depths = {"": 0}
        outer_of: dict[str, tuple[str, str]] = {}
        for path in own:
            names = path.split(".", _DEEPEST - 1) if path else []
            outer = ""
            for depth, name in enumerate(names, 1):
                inner = f"{outer}.{name}" if outer else name
                depths[inner], outer_of[inner] = depth, (outer, name)
                outer = inner
        children: dict[str, list[ModuleNode]] = {}
        for path in sorted(depths, key=lambda path: (-depths[path], path)):
            parts = sorted(children.get(path, ()), key=lambda node: (-node.total, node.name))
            size = own.get(path, 0)
            outer, name = outer_of.get(path, ("", ""))
            total = size + sum(part.total for part in parts)
            node = ModuleNode(name, path, size, total, tuple(parts))
            if path:
                children.setdefault(outer, []).append(node)
        return node

    def by_stack(self) -> list[tuple[Stack, int]]:
        """Bytes by stack, innermost frame first, the largest first; they add up to the peak."""
        sizes = Counter[Stack]()
        for block in self.peak.blocks:
            stack = () if block.stack is None else self.stacks[block.stack]
            sizes[stack or (_place(block, self.stacks),)] += block.size
        return sizes.most_common()

    def collapsed_stacks(self) -> str:
        """A line per stack for flame graphs: frames, outermost first, and bytes."""
        lines = [
            f"{';'.join(map(_collapsed, reversed(stack)))} {size}\n"
            for stack, size in self.by_stack()
        ]
        return "".join(lines)

    def to_dataframe(self, by: str = "line") -> pd.DataFrame:
        """The rows of one way to add the bytes up, the largest first.

        Args:
            by: ``line``, ``function``, ``module``, ``category`` or ``stack``.

        Returns:
            A column for each field of ``Holder`` (by line or function) or ``Share`` (by module or
            category), sizes in bytes; by stack the columns ``stack``, a tuple of frames with the
            innermost first, and ``size``.

        Raises:
            UsageError: ``by`` is something else.
        """
        import pandas as pd

        if by == "stack":
            return pd.DataFrame(self.by_stack(), columns=["stack", "size"])
        ways: dict[str, Callable[[], Sequence[Holder | Share]]] = {
            "line": self.by_line,
            "function": self.by_function,
            "module": self.by_module,
            "category": self.by_category,
        }
        if by not in ways:
            raise UsageError(f"by is {', '.join(ways)} or stack, not {quoted(by)}")
        columns = list((Share if by in ("module", "category") else Holder).__slots__)
        rows = [
            [
                source_name(row.file)
                if name == "file" and isinstance(row, Holder)
                else getattr(row, name)
                for name in columns
            ]
            for row in ways[by]()
        ]
        return pd.DataFrame(rows, columns=columns)

    def __repr__(self) -> str:
        """The bytes, the device, and the line and the category that hold most of them."""
        summary = self.peak.summary()
        if not self.peak.blocks:
            return f"<PeakHolders of {summary}>"
        line, category = self.by_line()[0], self.by_category()[0]
        place = f"{file_name(line.file)}:{line.line}" if line.file else line.function
        return (
            f"<PeakHolders of {summary}; most by {place} ({prose_size(line.size)}) and as "
            f"{category.name} ({prose_size(category.size)})>"
        )

    def _shares(self, name_of: Callable[[UsedBlock], str]) -> list[Share]:
        sums = self._sums(lambda block, _: name_of(block))
        shares = [Share(name, *totals) for name, totals in sums.items()]
        return sorted(shares, key=lambda share: (-share.size, share.name))

    def _sums(
        self, key_of: Callable[[UsedBlock, Frame], K], blocks: Sequence[UsedBlock] | None = None
    ) -> dict[K, list[int]]:
        """Bytes, blocks, and the bytes that backward allocated for a forward op, by key."""
        sums: defaultdict[K, list[int]] = defaultdict(lambda: [0, 0, 0])
        for block in self.peak.blocks if blocks is None else blocks:
            frame, is_forward = charged_frame(block, self.stacks)
            totals = sums[key_of(block, frame)]
            totals[0] += block.size
            totals[1] += 1
            totals[2] += is_forward * block.size
        return sums


def _holders(sums: Mapping[tuple[str, int | None, str], Sequence[int]]) -> list[Holder]:
    holders = [Holder(*place, *totals) for place, totals in sums.items()]
    return sorted(holders, key=lambda holder: (-holder.size, holder.file, holder.line or 0))


def _collapsed(frame: Frame) -> str:
    """A frame as collapsed stacks have it, which a semicolon or a line's end would cut."""
    place = f" ({file_name(frame.filename)}:{frame.line})" if frame.filename else ""
    return visible(f"{frame.name}{place}".replace(";", ":"))


def peak_holders(history: AllocationHistory, device: int | None = None) -> PeakHolders:
    """The holders of a GPU's memory at the moment of its highest active bytes."""
    if device is None:
        device = history.devices[0].device if history.devices else 0
    return PeakHolders(find_peak(history, device), history.stacks)


def charged_frame(made: UsedBlock | Event, stacks: Sequence[Stack]) -> tuple[Frame, bool]:
    """The frame of the program that a block counts at, and whether it is the forward op's."""
    if made.forward:
        stack = stacks[made.stack or 0]
        innermost = next((n for n, f in enumerate(stack) if is_of_user(f.filename)), len(stack))
        if any(frame.name == ENGINE for frame in stack[:innermost]):
            return innermost_of_user(stacks[made.forward]), True
    return _place(made, stacks), False


def _place(made: UsedBlock | Event, stacks: Sequence[Stack]) -> Frame:
    """The innermost frame of the program, or a frame that says why there is none."""
    return Frame("", 0, BEFORE) if made.stack is None else innermost_of_user(stacks[made.stack])


def _innermost_of_library(stack: Stack) -> Frame | None:
    """The innermost frame outside of torch, if it is below the program."""
    for frame in stack:
        if is_of_user(frame.filename):
            return None
        if not path_of_library(frame.filename).startswith(_TORCH):
            return frame
    return None


def innermost_of_user(stack: Stack) -> Frame:
    """The innermost frame of the program, or of all if the stack holds only libraries."""
    for frame in stack:
        if is_of_user(frame.filename):
            return frame
    return stack[0] if stack else Frame("", 0, NO_FRAMES)


@dataclass(frozen=True, slots=True)
class CallNode:
    """A call in the tree: all stacks that begin with the same frames."""

    frame: Frame | None  # that is called; None for the root
    depth: int  # how many frames are around it, plus one; 0 for the root
    start: int  # bytes of the calls to the left of it
    size: int


class _Node:
    """A call while the tree is built."""

    def __init__(self) -> None:
        self.size = 0
        self.calls: defaultdict[Frame, _Node] = defaultdict(_Node)


def call_tree(stacks: Sequence[tuple[Stack, int]]) -> list[CallNode]:
    """The calls of some stacks, each followed by those in it, the largest first."""
    root = _Node()
    for stack, size in stacks:
        node = root
        node.size += size
        for frame in reversed(stack):
            node = node.calls[frame]
            node.size += size
    calls = []
    waiting: list[tuple[_Node, CallNode]] = [(root, CallNode(None, 0, 0, root.size))]
    while waiting:
        node, call = waiting.pop()
        calls.append(call)
        start = call.start
        inner = []
        for frame, part in sorted(node.calls.items(), key=lambda item: (-item[1].size, item[0])):
            inner.append((part, CallNode(frame, call.depth + 1, start, part.size)))
            start += part.size
        waiting += reversed(inner)
    return calls
