"""Notes which tests reach which mutants, in the copy of the project of ``scripts/mutants.py``.

The copy's sources call ``reach``, in the tests' process and in those that the tests start. As a
plugin of pytest, the module also notes what each test took and whether it failed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT
_REACHED = os.open(Path(__file__).with_name(".reached"), _FLAGS, 0o644)
_write, _environment = os.write, os.environ  # tests replace them
_noted: set[tuple[int, str]] = set()


def reach(mutant: int) -> None:
    """Note that the current test reaches a mutant; outside of a test, that importing does."""
    test = _environment.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if (mutant, test) not in _noted:
        _noted.add((mutant, test))
        _write(_REACHED, f"{mutant}\t{test}\n".encode())


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note the seconds of a test's part, and whether it failed."""
    if "PYTEST_XDIST_WORKER" not in _environment:
        with Path(__file__).with_name(".reports").open("a") as file:
            file.write(f"{report.duration}\t{int(report.failed)}\t{report.nodeid}\n")
