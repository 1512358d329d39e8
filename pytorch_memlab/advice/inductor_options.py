"""Options of Inductor that keep it from timing something on the GPU, which takes memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from typing import Final

from ..history.model import Category
from ..history.out_of_memory import OutOfMemory
from .around_program import AroundProgram, Finding, already_used, applied

_CONFIG: Final = "torch._inductor.config"


class InductorOptions(AroundProgram):
    """The program with some options of Inductor."""

    reason_if_used: str
    """What the program does if it has the options already."""

    def __init__(self, options: Mapping[str, bool]) -> None:
        self._options = options  # by their names in ``torch._inductor.config``

    @property
    def code(self) -> tuple[str, ...]:
        """The edit as a person makes it."""
        settings = (f"{name} = {value}" for name, value in self._options.items())
        return (
            f"import {_CONFIG}",
            *(f"{_CONFIG}.{setting}  # before the first compiled call" for setting in settings),
        )

    @contextmanager
    def applied(self) -> Iterator[None]:
        from torch._inductor import config

        self._differs = any(
            attrgetter(name)(config) != value for name, value in self._options.items()
        )
        with config.patch(dict(self._options)):
            yield

    def finding(self) -> Finding:
        return applied(self.code) if self._differs else already_used(self.reason_if_used)


def bytes_to_time(
    oom: OutOfMemory,
    function: str,
    file: str,  # the end of the path of the function's file
) -> int | None:
    """Bytes that a function of Inductor takes to time something; None if it does not run."""
    is_timed = any(name == function and path.endswith(file) for name, path in oom.functions)
    if not is_timed or not oom.frames:
        return None
    place = oom.frames[0].place
    return oom.request.requested + sum(
        block.size
        for block in oom.blocks
        if block.place == place and block.category is Category.OTHERS and not block.name
    )
