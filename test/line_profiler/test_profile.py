"""The decorators: when they print, what they record, and how they are turned off."""

from __future__ import annotations

import asyncio
import functools
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.python_process import run_python

import pytorch_memlab
from pytorch_memlab import (
    LineProfiler,
    clear_global_line_profiler,
    profile,
    profile_every,
    set_target_gpu,
    simulate,
)
from pytorch_memlab.errors import NotAFunctionError, UnknownColumnError, UsageError
from pytorch_memlab.line_profiler.profile import global_line_profiler

ROOT = Path(__file__).parents[2]
PEAK = "active_bytes.all.peak"


def block(kib: int, device: str = "cuda") -> torch.Tensor:
    return torch.empty(kib * 1024, dtype=torch.uint8, device=device)


def peaks(shown: Any) -> list[Any]:
    return [values[0] for table in shown.report.tables for values in table.rows.values()]


PROGRAM = """\
import torch, sys
from pytorch_memlab import profile, simulate

@profile
def work():
    kept = torch.zeros(1024, device="cuda")
    torch.zeros(1024, device="cuda")

class Net(torch.nn.Module):
    @profile(columns=["allocated_bytes.all.peak", "hits"])
    def forward(self, x):
        return x * 2

@profile
def idle():
    pass

with simulate("24GiB"):
    work()
    Net().cuda()(torch.ones(256, device="cuda"))
    {end}
"""

TABLES = """\
## work

active_bytes reserved_bytes line  code
         all            all
        peak           peak
       0.00B          0.00B    4  @profile
                               5  def work():
       4.00K          2.00M    6      kept = torch.zeros(1024, device="cuda")
       8.00K          2.00M    7      torch.zeros(1024, device="cuda")

idle did not run while profiled
simulated GPU: Simulated GPU (24.00 GiB) (cuda:0)

## Net.forward

allocated_bytes hits line  code
            all
           peak
          1.00K    1   10      @profile(columns=["allocated_bytes.all.peak", "hits"])
                       11      def forward(self, x):
          2.00K    1   12          return x * 2

simulated GPU: Simulated GPU (24.00 GiB) (cuda:0)

"""


def run(tmp_path: Path, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "program.py"
    script.write_text(program)
    return run_python([script], cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": "", **environment})


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError('boom')", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
    ],
)
def test_profile_prints_when_the_program_ends_however_it_ends(
    tmp_path: Path, end: str, code: int
) -> None:
    done = run(tmp_path, PROGRAM.format(end=end))
    assert done.stdout == TABLES
    assert done.returncode == code, done.stderr


def test_switched_off_decorators_return_the_very_same_function(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "from pytorch_memlab import profile, profile_every\n"
        "import sys\n"
        "def work(): pass\n"
        "print([f is work for f in (profile(work), profile()(work), profile(columns=['x'])(work),"
        " profile_every(work), profile_every(3)(work), profile_every()(work))], sys.gettrace())\n",
        PYTORCH_MEMLAB="0",
    )
    assert done.stdout == "[True, True, True, True, True, True] None\n", done.stderr


def test_importing_the_package_does_nothing() -> None:
    program = (
        "import sys, threading, torch\n"
        "before = (sys.gettrace(), threading.active_count(), torch.cuda.is_initialized())\n"
        "import pytorch_memlab\n"
        "from pytorch_memlab import LineProfiler, profile\n"
        "after = (sys.gettrace(), threading.active_count(), torch.cuda.is_initialized())\n"
        "assert before == after\n"
        "heavy = {'pandas', 'rich', 'IPython', 'line_profiler', 'torch._dynamo'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_profile_every_prints_the_calls_since_the_last_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @profile_every(2, columns=PEAK)
    def work(kib: int) -> None:
        block(kib)

    def printed() -> list[str]:
        lines = capsys.readouterr().out.splitlines()
        return [line.split()[0] for line in lines if "block(kib)" in line]

    with simulate("24GiB"):
        work(8)
        assert printed() == []
        work(4)
        assert printed() == ["8.00K"]
        work(2)
        work(1)
        assert printed() == ["2.00K"]


def test_profile_every_takes_methods_generators_and_coroutines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Net(torch.nn.Module):
        @profile_every
        @torch.no_grad()
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    @profile_every()
    def numbers() -> Iterator[int]:
        block(2)
        yield 1

    @profile_every(1)
    async def waits() -> None:
        block(4)

    @profile_every(1)
    async def ticks() -> AsyncIterator[int]:
        block(6)
        yield 1

    async def collect() -> list[int]:
        return [number async for number in ticks()]

    with simulate("24GiB"):
        Net()(torch.zeros(256, device="cuda"))
        assert list(numbers()) == [1]
        asyncio.run(waits())
        never_run = ticks()
        assert asyncio.run(collect()) == [1]
        del never_run
    lines = capsys.readouterr().out.splitlines()
    shown = [
        line.split()[0]
        for line in lines
        if line.endswith(("x + 1", "block(2)", "block(4)", "block(6)"))
    ]
    assert shown == ["2.00K", "2.00K", "4.00K", "6.00K"]


def test_a_failing_call_counts_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    @profile_every(1, columns=PEAK)
    def fails() -> None:
        block(2)
        raise ValueError

    with simulate("24GiB"), pytest.raises(ValueError):  # noqa: PT011 - which does not matter
        fails()
    assert "       2.00K" in capsys.readouterr().out


def test_both_decorators_and_a_line_profiler_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    def inner() -> None:
        block(1)

    @profile
    @profile_every(1, columns=PEAK)
    def work() -> None:
        block(2)
        inner()

    with simulate("24GiB"):
        work()
        with LineProfiler(work, inner) as prof:
            work()
        work()
        assert capsys.readouterr().out.count("def work()") == 3
        assert peaks(pytorch_memlab.display(work, PEAK)) == [0, 2048, 1024]
        assert peaks(pytorch_memlab.display(work, "hits")) == [3, 3, 3]
        assert peaks(prof.display(work, "hits")) == [1, 1, 1]
        assert peaks(prof.display(inner, PEAK)) == [0, 1024]


def test_partials_of_the_decorators() -> None:
    decorate = functools.partial(profile, columns=[PEAK])

    def work() -> None:
        block(3)

    assert decorate(work) is work
    assert profile(work, columns=PEAK) is work
    with simulate("24GiB"):
        work()
        assert peaks(global_line_profiler.display(work, PEAK)) == [0, 3072]


def test_the_target_is_for_the_whole_process() -> None:
    @profile
    def work() -> None:
        set_target_gpu(1)
        one = block(1, "cuda:1")
        set_target_gpu("cuda:0")
        zero = block(2, "cuda:0")
        del one, zero

    with simulate("24GiB", count=2):
        work()
        shown = {
            table.device.name: [values[0] for values in table.rows.values()]
            for table in pytorch_memlab.display(columns=PEAK).report.tables
        }
        set_target_gpu(None)
    assert shown == {"cuda:0": [0, 0, 2048, 2048], "cuda:1": [0, 0, 1024]}


def test_clearing_forgets_functions_and_what_is_printed() -> None:
    @profile
    def work() -> None:
        block(1)

    with simulate("24GiB"):
        work()
        clear_global_line_profiler()
        work()
        shown = str(pytorch_memlab.display())
    assert shown.startswith("No data collected: no function was registered")


def test_it_stays_off_when_it_was_turned_off() -> None:
    global_line_profiler.disable()

    @profile
    def work() -> None:
        block(1)

    with simulate("24GiB"):
        work()
        assert not global_line_profiler.enabled
        global_line_profiler.enable()
        work()
    assert peaks(pytorch_memlab.display(work, "hits")) == [1, 1]


def test_errors_are_explained_in_a_function_that_comes_after_enable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports: list[str] = []
    monkeypatch.setattr(sys.modules[profile.__module__], "_reports_at_exit", reports)
    global_line_profiler.disable()
    global_line_profiler.enable()

    @profile
    def work() -> None:
        block(25 << 20)

    line = work.__code__.co_firstlineno + 2
    with simulate("24GiB"):
        try:
            work()
        except torch.OutOfMemoryError as error:
            sys.excepthook(type(error), error, error.__traceback__)
    assert global_line_profiler.recorded().failures == {(0, line): 25 << 30}
    place = f"test_profile.py:{block.__code__.co_firstlineno + 1}, in block"
    assert [text.splitlines()[0] for text in reports] == [f"Out of memory on cuda:0 at {place}"]


def test_misuse_is_one_clear_line_and_registers_nothing() -> None:
    with pytest.raises(NotAFunctionError, match="len is not written in Python"):
        profile(len)
    with pytest.raises(UnknownColumnError, match=r"did you mean|near|active_bytes\.all\.peak"):
        profile(columns=["active_bytes.all.peek"])(lambda: None)
    with pytest.raises(UsageError, match="output_interval is at least 1 call, not 0"):
        profile_every(0)
    with pytest.raises(UsageError, match="output_interval is a number of calls, not '3'"):
        profile_every("3")
    assert not global_line_profiler.enabled
    assert global_line_profiler._code_infos == {}
