"""``%imu_start``'s line, the processors' load, and ``perf`` beside it."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
import threading

import pytest

from pytorch_memlab import simulate
from pytorch_memlab.errors import UsageError
from pytorch_memlab.notebook import memory_usage, perf
from pytorch_memlab.notebook.memory_usage import (
    CpuLoad,
    CpuLoadMeter,
    start_watching_memory,
    stop_watching_memory,
)
from pytorch_memlab.notebook.perf import parse_sample, summary

MB = 2**20
LINE = re.compile(
    r"In \[(\d+)\] used (-?\d+\.\d) MiB RAM in (\d+\.\d\d)s "
    r"\(system mean cpu (\d+)%, single max cpu (\d+)%\), "
    r"peaked (\d+\.\d) MiB above final usage, current RAM usage now (\d+\.\d) MiB"
)


@pytest.fixture
def watched(shell):
    shell.user_ns.update(start=start_watching_memory, stop=stop_watching_memory, MB=MB)
    yield
    stop_watching_memory()


def lines(capsys) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_every_cell_has_a_line_from_the_starting_one_on(run, watched, capsys):
    run("start()")
    run("blob = bytearray(80 * MB)")
    run("len(bytearray(300 * MB)); del blob")
    run("1 / 0")
    run("stop()")
    run("x = 1")
    found = [LINE.fullmatch(line) for line in lines(capsys) if line.startswith("In [")]
    assert [match[1] for match in found] == ["1", "2", "3", "4"]
    assert abs(float(found[1][2]) - 80) <= 1
    assert abs(float(found[2][2]) + 80) <= 1
    assert abs(float(found[2][6]) - 380) <= 1


def test_memory_that_is_taken_between_cells_counts(run, watched, capsys):
    run("start()")
    blob = bytearray(80 * MB)
    run("x = 1")
    assert abs(float(LINE.fullmatch(lines(capsys)[-1])[2]) - 80) <= 1
    assert len(blob) == 80 * MB


def test_starting_again_begins_anew_with_one_line_each(run, watched, capsys):
    run("start()")
    run("start()")
    run("x = 1")
    assert [line.split("]")[0] for line in lines(capsys)] == ["In [1", "In [2", "In [3"]


def test_its_thread_ends_with_the_cell(shell, run, watched):
    before = threading.active_count()
    run("start()")
    run("import threading; during = threading.active_count()")
    assert threading.active_count() == before
    assert shell.user_ns["during"] == before + 1


def test_the_load_is_that_of_all_processors_and_of_the_busiest(monkeypatch):
    samples = iter([[(0, 0), (5, 10)], [(10, 10), (5, 20)], [(10, 20), (10, 30)]])
    monkeypatch.setattr(memory_usage, "_times", lambda: next(samples))
    monkeypatch.setattr(memory_usage, "SAMPLING_SECONDS", 1000)
    meter = CpuLoadMeter()
    meter._look()
    assert meter.stop() == CpuLoad(mean=(50 + 25) / 2, highest=100)


@pytest.mark.parametrize(
    ("samples", "load"),
    [
        # One step of the kernel's clock, in which one of two processors was busy, tells nothing.
        ([[(1.0, 9.0), (2.0, 9.0)], [(1.01, 9.01), (2.0, 9.01)]], (0, 0)),
        ([[(1.0, 9.0), (2.0, 9.0)]] * 2, (0, 0)),
        # The time of a short rest counts with the sample before it.
        ([[(0.0, 0.0)], [(0.05, 0.1)], [(0.06, 0.11)]], (600 / 11, 50)),
    ],
)
def test_of_a_moment_there_is_no_load(monkeypatch, samples, load):
    left = iter(samples)
    monkeypatch.setattr(memory_usage, "_times", lambda: next(left))
    monkeypatch.setattr(memory_usage, "SAMPLING_SECONDS", 1000)
    meter = CpuLoadMeter()
    for _ in samples[1:-1]:
        meter._look()
    assert meter.stop() == pytest.approx(load)


def test_too_short_for_the_kernels_clock_is_no_load(monkeypatch):
    monkeypatch.setattr(memory_usage, "_times", lambda: [(3.0, 7.0)])
    monkeypatch.setattr(memory_usage, "SAMPLING_SECONDS", 1000)
    assert CpuLoadMeter().stop() == CpuLoad(0.0, 0.0)


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("     0.100167119              6,273      cache-misses", 6273.0),
        ("     0.200331405                382      cache-misses  #  (38.2%)", 382.0),
        ("     0.300331405                  0      instructions", 0.0),
        ("     0.100167119      <not counted>      cache-misses", None),
        ("     0.100167119    <not supported>      stalled-cycles-frontend", None),
        ("#           time             counts unit events", None),
        ("", None),
        ("Events disabled", None),
    ],
)
def test_perfs_lines_are_understood(line, count):
    assert parse_sample(line) == count


def test_perfs_samples_are_averaged_to_a_second():
    assert summary("cache-misses", [6273.0, 382.0, 441.0]) == (
        "perf value for cache-misses averages to 23,653/second, raw samples: [6273.0, 382.0, 441.0]"
    )


def test_an_event_without_samples_has_no_value():
    assert summary("nonsense", []) == "perf has no value for nonsense"


FAKE_PERF = """#!/bin/sh
echo "#           time             counts unit events" >&2
echo "     0.100000000              1,000      $5" >&2
echo "     0.200000000                500      $5" >&2
trap 'exit 0' TERM
echo "$@" > "$PERF_CALLED"
while :; do sleep 0.02; done
"""


def test_perf_runs_beside_each_cell(run, watched, capsys, tmp_path, monkeypatch):
    tool = tmp_path / "perf"
    tool.write_text(FAKE_PERF)
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    called = tmp_path / "called"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("PERF_CALLED", str(called))
    monkeypatch.setattr(perf, "PAUSE_SECONDS", 0.5)
    run("start(perf='instructions')")
    printed = lines(capsys)
    import os

    command = f"stat --pid {os.getpid()} --event instructions -I 100"
    assert called.read_text() == command + "\n"
    assert printed[0] == f"run_capture_perf running: perf {command}"
    assert printed[1] == "PAUSING to get perf sample for 0.5s"
    assert LINE.fullmatch(printed[2])
    assert printed[3:] == [
        "perf value for instructions averages to 7,500/second, raw samples: [1000.0, 500.0]",
    ]


def test_perf_can_be_tried_from_the_command_line(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert perf.main(["instructions"]) == 1
    assert capsys.readouterr().out.startswith("perf is not installed")
    tool = tmp_path / "perf"
    tool.write_text(FAKE_PERF)
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("PERF_CALLED", str(tmp_path / "called"))
    assert perf.main(["instructions"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "perf value for instructions averages to 7,500/second, raw samples: [1000.0, 500.0]"
    ]


def test_without_perf_nothing_is_said_of_it(run, watched, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    run("start(perf='instructions')")
    [line] = lines(capsys)
    assert LINE.fullmatch(line)


def test_outside_ipython_it_says_what_is_needed():
    with pytest.raises(UsageError, match="needs IPython"):
        start_watching_memory()


def test_neither_torch_nor_numpy_is_loaded_before_the_program_loads_it():
    program = """
import sys
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
for cell in ("%load_ext pytorch_memlab.imu", "%imu_start", "x = 1"):
    assert shell.run_cell(cell).success
print(sorted({"torch", "numpy", "pandas"} & sys.modules.keys()))
for cell in ("import torch", "x = torch.ones(3)", "%imu_stop"):
    assert shell.run_cell(cell).success
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr == ""
    assert "\n[]\n" in done.stdout
    assert done.stdout.count("current RAM usage now") == 4


@pytest.mark.knows_simulation("the host holds the tensors of simulated GPUs")
def test_it_says_that_the_host_holds_the_tensors_of_simulated_gpus(run, watched, capsys):
    with simulate("24GiB"):
        run("start()")
        run("import torch; kept = torch.ones(3, device='cuda')")
        assert lines(capsys)[-1] == "RAM contains the tensors of the simulated GPUs"
        run("del kept; stop()")
