"""The one measurement of cells: its end, and measurements of the same kind."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from pytorch_memlab.notebook import cell_measurement
from pytorch_memlab.notebook.cell_events import cell_events
from pytorch_memlab.notebook.cell_measurement import CellMeasurement, stop_everywhere

HOST_ONLY = {"gc_collect": False, "empty_cache": False}


def test_a_last_report_that_fails_leaves_nothing_behind(shell, run, monkeypatch):
    def fail(_reading):
        raise ValueError("standard output is closed")

    stopped = []

    class Scope(cell_measurement.HostScope):
        def stop(self):
            stopped.append(self)
            super().stop()

    monkeypatch.setattr(cell_measurement, "HostScope", Scope)
    measurement = CellMeasurement(fail, **HOST_ONLY)
    shell.user_ns["measurement"] = measurement

    result = run("measurement.start(); measurement.stop(report=True)")

    assert str(result.error_in_exec) == "standard output is closed"
    assert len(stopped) == 1
    assert not measurement.is_on
    assert cell_events(shell).listeners == ()


def test_only_one_of_a_kind_reports(shell):
    first, second, other, alone = (
        CellMeasurement(print, kind=kind, **HOST_ONLY) for kind in ("line", "line", "table", None)
    )

    for measurement in (alone, other, first, second):
        measurement.start()

    assert [one.is_on for one in (first, second, other, alone)] == [False, True, True, True]
    stop_everywhere("line")
    assert [one.is_on for one in (second, other, alone)] == [False, True, True]
    stop_everywhere(None)
    assert alone.is_on
    other.stop()
    alone.stop()


def test_a_shell_within_another_has_its_own_of_a_kind(shell):
    outer, inner = (CellMeasurement(print, kind="line", **HOST_ONLY) for _ in range(2))
    outer.start()
    InteractiveShell.clear_instance()
    embedded = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    try:
        inner.start()

        assert outer.is_on
        assert cell_events(embedded).listeners == (inner,)
        stop_everywhere("line")
        assert (outer.is_on, inner.is_on) == (False, False)
    finally:
        InteractiveShell.clear_instance()
        InteractiveShell._instance = shell


@pytest.mark.parametrize("kind", ["line", None])
def test_a_second_start_and_a_second_stop_do_nothing(shell, run, kind):
    readings = []
    measurement = CellMeasurement(readings.append, kind=kind, **HOST_ONLY)
    measurement.start()
    measurement.start()
    run("x = 1")
    measurement.stop()
    measurement.stop()
    assert [one.number for one in readings] == [1]
