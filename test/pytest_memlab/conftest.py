"""Runs pytest within a test, with the plugin, in this process."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent
from typing import Any

import pytest
from inner_runs import OwnModules


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Write ``test_it.py``, run it, and return pytest's result."""
    monkeypatch.setattr(OwnModules, "folder", pytester.path, raising=False)
    monkeypatch.setattr("_pytest.pytester.SysModulesSnapshot", OwnModules)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # the plugin may be installed too
    # A record of all hooks would hold the tensors of failed tests.
    record = pytester.make_hook_recorder

    def record_nothing(manager: pytest.PytestPluginManager) -> pytest.HookRecorder:
        recorder = record(manager)
        recorder.finish_recording()
        return recorder

    monkeypatch.setattr(pytester, "make_hook_recorder", record_nothing)

    def run_tests(source: str = "", *options: str) -> Any:
        if source:
            pytester.makepyfile(test_it=f"import pytest, torch\n{dedent(source)}")
        return pytester.runpytest_inprocess("-p", "pytorch_memlab.pytest_plugin", *options)

    return run_tests
