"""Measures the tests that ask for it."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pytest

from .._common.process.switch import is_switched_off
from .._common.process.uncaught_errors import ErrorReport, uncaught
from ..advice.this_program import repeated_on
from ..advice.trials import MOST_SECONDS, can_be_tried, seconds_for, tried_advice, untried_advice
from ..devices.failed_request import observe
from ..errors import MemlabError
from ..history.recorder import Recording
from ..profiles.changed_tests import ChangedTest, MeasuredTest, changed_lines
from ..profiles.differences import growth_limit
from ..render import memory_of_tests, oom
from ..saved.tests_file import read
from ..simulation import simulate_without_traces
from ..simulation.inspect import active
from .gpu_memory import GPUMemoryOfTest, LeakCheck
from .machines import MachinesOfTests
from .marks import Limits, limits_of
from .repeated_test import repeated_test
from .selection import REPORT_FIELD, asks_for_memory, has_own_mark

_NAME: Final = "memlab-measuring"
_KEY: Final = pytest.StashKey["RunOfTest"]()
_MISTAKE: Final = pytest.StashKey[str]()
_SECTION: Final = "GPU memory"
_LATE: Final = (
    "gpu_memory measures tests that name it, or whose fixtures do: request.getfixturevalue comes"
    " too late"
)


def register(config: pytest.Config) -> None:
    """Measure from now on; a second call has no effect, nor has any if ``PYTORCH_MEMLAB=0``."""
    if not is_switched_off() and not config.pluginmanager.has_plugin(_NAME):
        config.pluginmanager.register(MeasuredTests(config), _NAME)


def gpu_memory_of(item: pytest.Item) -> GPUMemoryOfTest:
    """The values that a test's fixture gives it."""
    run = item.stash.get(_KEY, None)
    if run is not None:
        return run.memory
    if not is_switched_off():
        pytest.fail(_LATE, pytrace=False)
    return GPUMemoryOfTest()


@dataclass
class RunOfTest:
    """One test that is measured."""

    limits: Limits
    memory: GPUMemoryOfTest = field(default_factory=GPUMemoryOfTest)
    began: float = field(default_factory=time.monotonic)
    leaks: LeakCheck | None = None
    has_ended: bool = False
    has_passed: bool = False


class MeasuredTests:
    """The hooks that measure."""

    def __init__(self, config: pytest.Config) -> None:
        self._folder = config.rootpath
        self._measures_all = bool(config.getoption("memlab_gpu"))
        self._machines = MachinesOfTests()
        self._current: RunOfTest | None = None
        self._increase = config.getoption("memlab_fail_on_increase")
        self._grew_too_much = growth_limit("--memlab-fail-on-increase", self._increase)
        path = config.getoption("memlab_baseline")
        self._baseline: Mapping[str, MeasuredTest] = read(path) if path else {}
        self._seconds = 0.0 if config.getoption("memlab_no_try") else MOST_SECONDS  # for all trials

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Give a test its GPUs, from before its fixtures until after them."""
        if not self._measures_all and not asks_for_memory(item):
            return (yield)
        with ExitStack() as gpus:
            try:
                limits = limits_of(item)
                if simulate_without_traces.stands_for_others:  # a trial, on a GPU without a limit
                    limits = Limits(None, None, limits.gpu)
                gpus.enter_context(self._machines.simulated(limits.gpu))
            except MemlabError as error:
                item.stash[_MISTAKE] = str(error)
                return (yield)
            run = item.stash[_KEY] = self._current = RunOfTest(limits)
            if active.machine is None:
                observe()
            # Lines of what fixtures allocate are known while this is on.
            lines = Recording(history=active.machine is None)
            lines.begin()
            if limits.leaks is not None:
                run.leaks = LeakCheck()
            try:
                return (yield)
            finally:
                self._current = None
                del item.stash[_KEY]
                lines.end()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Fail a test whose mark cannot be read."""
        mistake = item.stash.get(_MISTAKE, None)
        if mistake is not None:
            pytest.fail(mistake, pytrace=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        """Note what a fixture allocates that outlives the test."""
        result = yield
        if fixturedef.scope != "function" and self._current and self._current.leaks:
            self._current.leaks.expect()
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measure the test itself; fail it where it used too much."""
        run = item.stash.get(_KEY, None)
        if run is None:
            return (yield)
        run.memory.begin()
        try:
            result = yield
        finally:
            run.memory.end()
        run.has_ended = True
        self._check(item, run)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail a test of which too much stays in use."""
        result = yield
        run = item.stash.get(_KEY, None)
        if run is not None and run.leaks is not None and run.has_passed:
            if isinstance(item, pytest.Function):
                item.funcargs.clear()  # pytest forgets them a moment later
            leak = run.leaks.found()
            if run.limits.leaks is not None and leak.size > run.limits.leaks:
                size, limit = leak.size, run.limits.leaks
                text = memory_of_tests.leak(leak.device, size, leak.blocks, limit, leak.holders)
                pytest.fail(text, pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the memory, and the explanation where a GPU ran out of it."""
        report = yield
        run = item.stash.get(_KEY, None)
        if run is None:
            return report
        error = None if call.excinfo is None else call.excinfo.value
        explained = None if error is None else uncaught.add(error)
        if explained is not None:
            explained.is_shown = True
            self._try_remedies(item, run, explained)
            report.sections.append((_SECTION, explained.text))
        if call.when == "call":
            run.has_passed = report.passed
            if run.has_ended:
                measured = run.memory.measured(run.limits.peak, self._folder)
                setattr(report, REPORT_FIELD, asdict(measured))
        return report

    def _try_remedies(self, item: pytest.Item, run: RunOfTest, report: ErrorReport) -> None:
        """Run the test again with each remedy, while the session has time for trials."""
        machine = active.machine
        if machine is None or not self._seconds or simulate_without_traces.stands_for_others:
            return
        if report.facts is None or not can_be_tried(report.facts):
            return
        began = time.monotonic()
        if self._seconds < 1:
            reason = f"the trials of this session have taken their {MOST_SECONDS:.0f} s"
            report.advice = untried_advice(report.facts, reason)
        else:
            seconds = min(self._seconds, seconds_for(began - run.began))
            program = repeated_on(machine, repeated_test(item))
            report.advice = tried_advice(report.facts, program, seconds)
        report.text = oom.text(report.facts, report.advice)
        self._seconds = max(0.5, self._seconds - (time.monotonic() - began))

    def _check(self, item: pytest.Item, run: RunOfTest) -> None:
        limit = run.limits.peak
        if getattr(item, "_excinfo", None):  # of a unittest.TestCase that failed
            return
        measured = run.memory.measured(limit, self._folder)
        if limit is not None and measured.peak > limit:
            text = memory_of_tests.over_limit(measured, limit, run.memory.holders_of_peak())
            pytest.fail(text, pytrace=False)
        before = self._baseline.get(item.nodeid)
        change = ChangedTest(item.nodeid, before, measured).change
        if before is not None and change is not None and self._grew_too_much(change):
            lines = changed_lines(before, measured)
            text = memory_of_tests.increased(measured, change, self._increase, lines)
            pytest.fail(text, pytrace=False)
        if not run.memory.was_used and (limit is not None or run.limits.leaks is not None):
            text = memory_of_tests.unused(item.name)
            if not has_own_mark(item):  # that of its class or module is for others too
                item.warn(pytest.PytestWarning(text))
            else:
                pytest.fail(text, pytrace=False)
