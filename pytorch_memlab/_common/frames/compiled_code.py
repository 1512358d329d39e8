"""Code that a compiler runs in place of the program's, told to whom it concerns.

Note [Lines of compiled graphs]
No line of the program runs while a compiled graph does. The graph tells, before each statement of
its wrapper that makes a buffer, which lines of the program the buffer comes from. Followers move to
these lines, as a tracer does at a line event: what happens until the next statement is theirs.
A line is hit once in each run of a forward graph that has an op of it, however often the compiler
met the line, and bytes of the backward pass are those of the line that it differentiates.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import CodeType
from typing import Final, NamedTuple, Protocol

Frame = tuple[str, int, str]
"""File, line and function's name."""

Frames = tuple[Frame, ...]
"""The lines that a buffer comes from, outermost call first."""


class GraphFlops(NamedTuple):
    """Floating point operations of a run of a graph."""

    whole: int = 0
    second: int = 0  # of them, those that the forward pass has computed before


class RunFollower(Protocol):
    """Follows one run of a compiled graph."""

    def at(self, frames: Frames, /) -> None:
        """The graph arrives at a line of the program."""

    def end(self) -> None:
        """The run is over."""


class CompilationFollower(Protocol):
    """Follows what is compiled, and what runs of it."""

    def replaced(self, code: CodeType, generated: CodeType, is_start: bool, /) -> None:
        """``generated`` runs in place of a code, from its start or from a line within it."""

    def compiling(self) -> AbstractContextManager[None]:
        """Within: the compiler runs, and no code of the program."""

    def begin(
        self, lines: frozenset[Frames], is_hit: bool, flops: Callable[[], GraphFlops], /
    ) -> RunFollower:
        """A graph runs that has ops of these lines; ``is_hit`` if they count as run by this."""


class CompiledCode:
    """All that was compiled in this process, and its followers."""

    def __init__(self) -> None:
        self.followers: list[CompilationFollower] = []
        self._generated: dict[int, tuple[CodeType, CodeType, bool]] = {}
        self._thread = threading.local()

    def follow(self, follower: CompilationFollower) -> None:
        """Tell a follower of all that is compiled already, and of what happens from now on."""
        self.followers.append(follower)
        for code, generated, is_start in tuple(self._generated.values()):
            follower.replaced(code, generated, is_start)

    def replace(self, code: CodeType, generated: CodeType, is_start: bool) -> None:
        """``generated`` runs in place of a code."""
        self._generated[id(generated)] = code, generated, is_start
        for follower in tuple(self.followers):
            follower.replaced(code, generated, is_start)

    @property
    def is_used(self) -> bool:
        """True if generated code runs in place of the program's."""
        return bool(self._generated)

    def forget(self) -> None:
        """No generated code runs any more."""
        self._generated.clear()

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Within: the compiler runs."""
        with ExitStack() as stack:
            for follower in tuple(self.followers):
                stack.enter_context(follower.compiling())
            yield

    @contextmanager
    def running(
        self,
        lines: frozenset[Frames],
        is_hit: bool,
        flops: Callable[[], GraphFlops] = GraphFlops,
    ) -> Iterator[None]:
        """Within: a compiled graph runs."""
        runs = tuple(follower.begin(lines, is_hit, flops) for follower in tuple(self.followers))
        outer = self.runs()
        self._thread.runs = runs
        try:
            yield
        finally:
            self._thread.runs = outer
            for run in reversed(runs):
                run.end()

    def at(self, frames: Frames) -> Callable[[], None]:
        """A function that tells that the graph arrives at a line of the program."""

        def arrive() -> None:
            for run in self.runs():
                run.at(frames)

        return arrive

    def runs(self) -> tuple[RunFollower, ...]:
        """The followers' part in the run of a graph that goes on in this thread."""
        runs: tuple[RunFollower, ...] = getattr(self._thread, "runs", ())
        return runs


compiled_code: Final = CompiledCode()
"""The compiled code of this process."""
