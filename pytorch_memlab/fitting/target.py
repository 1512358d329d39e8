"""Targets of a trial: a script, a module or a function."""

from __future__ import annotations

import builtins
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import CodeType
from typing import Any, Protocol

from .._common.process import main_program
from .._common.text.secrets_in_arguments import masked
from .._common.torch.storages import storages_of
from ..errors import UsageError
from ..simulation.inspect import active
from .change import Change
from .used_tensors import used_tensors
from .watched_source import LOOP, watched


class Target(Protocol):
    """Something that a trial can run."""

    @property
    def is_repeated(self) -> bool:
        """True for one step, which runs until the peak has settled."""

    @property
    def name(self) -> str: ...

    def show_sources(self) -> None:
        """Give ``linecache`` the lines that are in no file."""

    def started(self, changes: Sequence[Change]) -> AbstractContextManager[Callable[[], object]]:
        """Begin the program; the function that is given runs it."""

    def used_storages(self) -> frozenset[int]:
        """``_cdata`` of the storages of this process that it uses."""

    def uses_real_gpu(self) -> bool:
        """True if it uses tensors of a real GPU, which no fork can use."""


@dataclass(frozen=True, slots=True)
class ProgramTarget:
    """A script or a module, run as ``python`` would run it."""

    script: str
    arguments: tuple[str, ...] = ()  # of the program, without its name
    is_module: bool = False  # whether ``script`` is the name of a module

    is_repeated = False

    @property
    def name(self) -> str:
        """The program, without its folder, and its arguments."""
        return " ".join([os.path.basename(self.script), *masked(self.arguments)])

    def check(self) -> str | None:
        """The source of the program, if it has any."""
        try:
            with self._on_path():
                return self._find(self.arguments).source
        except UsageError:
            raise
        except SyntaxError as error:
            line = "" if error.lineno is None else f":{error.lineno}"
            raise UsageError(f"{error.filename or self.script}{line}: {error.msg}") from None
        except ValueError as error:  # zero bytes, before Python 3.12
            raise UsageError(f"{self.script}: {error}") from None

    def show_sources(self) -> None:
        """They are in files."""

    @contextmanager
    def started(self, changes: Sequence[Change]) -> Iterator[Callable[[], object]]:
        """Make the program ``__main__``, with its own ``sys.argv``."""
        arguments = self.arguments
        for change in changes:
            arguments = change.arguments(arguments)
        with self._on_path():
            program = self._find(arguments)
            with program.as_main() as main:
                yield partial(exec, _watched(program), vars(main))

    def used_storages(self) -> frozenset[int]:
        """A program uses nothing that this process holds."""
        return frozenset()

    def uses_real_gpu(self) -> bool:
        """False: it begins in a process without tensors."""
        return False

    def _on_path(self) -> AbstractContextManager[None]:
        folder = main_program.folder_of(self.script, is_module=self.is_module)
        return main_program.first_on_path(folder)

    def _find(self, arguments: Sequence[str]) -> main_program.Program:
        return main_program.find(self.script, arguments, is_module=self.is_module)


def _watched(program: main_program.Program) -> CodeType:
    if program.source is None or not hasattr(builtins, LOOP):  # not in a trial
        return program.code
    return watched(program.source, program.code.co_filename)


@dataclass(frozen=True, slots=True)
class FunctionTarget:
    """A Python function."""

    function: Callable[..., object]
    keywords: Mapping[str, Any] = field(default_factory=dict)

    is_repeated = True

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__qualname__", None) or repr(self.function))

    def __reduce__(self) -> tuple[Any, ...]:
        """For a new Python: what the function uses is made there, on the GPUs that are there."""
        import cloudpickle

        return _PickledFunction, (cloudpickle.dumps((self.function, dict(self.keywords))),)

    def check(self) -> None:
        if not callable(self.function):
            raise UsageError(f"fit takes a function to call, not {self.function!r}")

    def show_sources(self) -> None:
        """They are known where the function is."""

    @contextmanager
    def started(self, changes: Sequence[Change]) -> Iterator[Callable[[], object]]:
        keywords: Mapping[str, Any] = dict(self.keywords)
        for change in changes:
            keywords = change.keywords(keywords)
        yield partial(self.function, **keywords)

    def used_storages(self) -> frozenset[int]:
        """``_cdata`` of the storages of all tensors that the function refers to."""
        tensors = used_tensors(self.function, self.keywords)
        return frozenset(storage._cdata for tensor in tensors for storage in storages_of(tensor))

    def uses_real_gpu(self) -> bool:
        """True if the function refers to tensors of a real GPU, which no fork can use."""
        return active.machine is None and bool(self._gpu_indices())

    def check_gpus(self, num_gpus: int) -> None:
        """Raise ``UsageError`` if tensors are on a GPU that the runs would not have."""
        last = max(self._gpu_indices(), default=0)
        if last >= num_gpus:
            raise UsageError(
                f"{self.name} uses tensors on cuda:{last}: fit(..., num_gpus={last + 1})"
            )

    def _gpu_indices(self) -> set[int]:
        tensors = used_tensors(self.function, self.keywords)
        return {tensor.device.index or 0 for tensor in tensors if tensor.is_cuda}


@dataclass(frozen=True, slots=True)
class _PickledFunction:
    """A ``FunctionTarget`` in a new Python."""

    pickled: bytes

    is_repeated = True

    def show_sources(self) -> None:
        """They come with the function."""

    @contextmanager
    def started(self, changes: Sequence[Change]) -> Iterator[Callable[[], object]]:
        function, keywords = pickle.loads(self.pickled)  # noqa: S301 - our own process wrote it
        with FunctionTarget(function, keywords).started(changes) as call:
            yield call

    def used_storages(self) -> frozenset[int]:
        """They are not there yet."""
        return frozenset()
