"""A test that ran out of memory, as a program that can run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from ..errors import MemlabError
from ..fitting.change import Change


class TestFailedError(MemlabError):
    """The test does not pass in a trial, for a reason that is no exception."""

    __test__ = False


@dataclass(frozen=True, slots=True)
class RepeatedTest:
    """One test, run by pytest with the options of the session."""

    node: str  # with the whole path of its file
    arguments: tuple[str, ...]

    is_repeated = False

    @property
    def name(self) -> str:
        return self.node.rpartition("::")[2]

    def show_sources(self) -> None:
        """They are in files."""

    @contextmanager
    def started(self, changes: Sequence[Change]) -> Iterator[Callable[[], object]]:  # noqa: ARG002 - they edit files
        yield self._run

    def used_storages(self) -> frozenset[int]:
        """It begins in a process without tensors."""
        return frozenset()

    def uses_real_gpu(self) -> bool:
        return False

    def _run(self) -> None:
        errors = _Errors()
        status = pytest.main([*self.arguments, self.node], [errors])
        for error in errors.seen:
            # Values are not computed: what the test asserts of them may not hold.
            if not isinstance(error, AssertionError):
                raise error
        if status != pytest.ExitCode.OK and not errors.seen:
            raise TestFailedError(f"pytest ended with exit status {int(status)}")


class _Errors:
    """Keeps the errors that pytest shows."""

    def __init__(self) -> None:
        self.seen: list[BaseException] = []

    def pytest_exception_interact(self, call: pytest.CallInfo[Any]) -> None:
        if call.excinfo is not None:
            self.seen.append(call.excinfo.value)


def repeated_test(item: pytest.Item) -> RepeatedTest:
    config = item.config
    chosen = set(config.args)
    words = [str(word) for word in config.invocation_params.args]
    arguments = [word for word in words if word not in chosen]
    # Edited lines come through the import of Python, not through that which rewrites assertions.
    arguments += ["--assert=plain", "--capture=no", "-p", "no:cacheprovider"]
    if config.pluginmanager.has_plugin("xdist"):
        arguments += ["-n0"]
    if config.pluginmanager.has_plugin("_cov"):
        arguments += ["--no-cov"]
    _, colons, name = item.nodeid.partition("::")
    return RepeatedTest(f"{item.path}{colons}{name}", tuple(arguments))
