"""The plugin's options for a whole session: the GPU, the summary, the saved file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from .._common.process.checked_file import CheckedFile
from .._common.process.switch import is_switched_off
from .._common.text.prose_size import counted
from ..errors import MemlabError
from ..profiles.changed_tests import ChangedTest, MeasuredTest
from ..profiles.differences import growth_limit
from ..profiles.privacy import private_test
from ..render import memory_of_tests
from ..saved.tests_file import from_report, read, text_of
from .selection import REPORT_FIELD

_NAME: Final = "memlab-session"
_BROKEN_OFF: Final = (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)


def begin(config: pytest.Config) -> None:
    try:
        results = SessionResults(config)
        gpu = config.getoption("memlab_gpu")
        if gpu and not is_switched_off() and not _hands_tests_out(config):
            _simulate(config, gpu)
    except OSError as error:
        raise pytest.UsageError(f"cannot read {error.filename}: {error.strerror}") from None
    except MemlabError as error:
        raise pytest.UsageError(str(error)) from None
    if not _is_worker(config):
        config.pluginmanager.register(results, _NAME)


def _is_worker(config: pytest.Config) -> bool:
    """True if another process, which xdist started this one for, shows the results."""
    return hasattr(config, "workerinput")


def _hands_tests_out(config: pytest.Config) -> bool:
    """True if the tests run in other processes."""
    return config.getoption("dist", "no") != "no" and not _is_worker(config)


def _simulate(config: pytest.Config, gpu: str) -> None:
    from ..simulation import simulate
    from .measuring import register

    simulation = simulate(gpu)
    simulation.__enter__()
    config.add_cleanup(simulation.__exit__)
    register(config)


class SessionResults:
    """The memory of all tests, as it comes in."""

    def __init__(self, config: pytest.Config) -> None:
        self._tests: dict[str, MeasuredTest] = {}
        self._shows = config.getoption("memlab")
        self._path = config.getoption("memlab_save")
        path = config.getoption("memlab_baseline")
        increase = config.getoption("memlab_fail_on_increase")
        growth_limit("--memlab-fail-on-increase", increase)
        if increase and not path:
            raise pytest.UsageError(
                "--memlab-fail-on-increase compares with a baseline: give --memlab-baseline FILE"
            )
        self._baseline: Mapping[str, MeasuredTest] | None = read(path) if path else None
        self._file = CheckedFile(self._path) if self._path else None
        self._is_private = config.getoption("memlab_private")
        if self._is_private and not self._path:
            raise pytest.UsageError("--memlab-private is for --memlab-save FILE: give that too")

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A test has ended, here or in a process of xdist."""
        data = getattr(report, REPORT_FIELD, None)
        if data is not None:
            self._tests[report.nodeid] = from_report(data)

    def pytest_terminal_summary(self, terminalreporter: Any, exitstatus: int) -> None:
        """Show the tests, and write the file."""
        compared = [
            ChangedTest(name, (self._baseline or {}).get(name), test)
            for name, test in self._tests.items()
        ]
        if self._shows or self._baseline is not None:
            terminalreporter.write_sep("=", "GPU memory")
            lines = memory_of_tests.summary(compared, has_baseline=self._baseline is not None)
            for line in lines:
                terminalreporter.write_line(line)
        if self._file is None:
            return
        if not self._tests and exitstatus in _BROKEN_OFF:
            terminalreporter.write_line(f"no test ran: {self._path} is as it was")
            return
        try:
            change = private_test if self._is_private else (lambda test: test)
            name = self._file.write(
                text_of({test: change(self._tests[test]) for test in self._tests})
            )
        except MemlabError as error:
            terminalreporter.write_line(str(error), red=True)
            return
        tests = counted(len(self._tests), "test")
        terminalreporter.write_line(f"GPU memory of {tests} written to {name}")
