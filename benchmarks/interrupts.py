"""Interrupts at random instructions of a profiled program, and what each of them leaves behind.

Every interrupt is an error that a signal's handler raises. Half of them come where Python may run
handlers, at an instruction that a profile function counts; those are repeatable. The others are
real: a timer sends SIGALRM, or another thread SIGINT, after a random time. After each one the
tracer, patched names, signal handlers, modes, windows, files, threads and child processes are
compared with those from before. A remnant is told with its place.

    python -m benchmarks.interrupts --count 20000 --seed 1
"""

from __future__ import annotations

import _thread
import argparse
import contextlib
import faulthandler
import gc
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab._common.frames import hidden_calls
from pytorch_memlab._common.interrupts import uninterrupted as uninterrupted_module
from pytorch_memlab.cli.main import main as command_line
from pytorch_memlab.devices import find_devices, program_view
from pytorch_memlab.scopes import PeakScope, peak_tracker
from pytorch_memlab.simulation.inspect import active
from pytorch_memlab.simulation.machine import simulated_gpu

_HERE: Final = str(Path(__file__))
_THREADING: Final = threading.__file__
_IN_ONE_FORK: Final = 400
"""Interrupts in one process; after a remnant a new one begins."""

_PATCHED: Final[tuple[Any, ...]] = (
    torch,
    torch.cuda,
    torch.cuda.memory,
    torch.cuda.random,
    torch._C,
    torch.Tensor,
    torch.UntypedStorage,
    torch.autograd,
    torch.optim.Optimizer,
    nn.Module,
    threading.Thread,
    os,
    io,
    shutil,
    warnings,
)

_PROGRAM: Final = """\
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


class Interrupted(KeyboardInterrupt):
    """The error that the handlers raise."""


def _raise(_number: int, _frame: FrameType | None) -> None:
    raise Interrupted


Names = list[dict[str, Any]]


def names() -> Names:
    """The attributes of everything that is ever patched."""
    return [dict(vars(owner)) for owner in _PATCHED]


def changed(before: Names) -> list[str]:
    """The attributes that are others now."""
    missing = object()
    return [
        f"{owner.__name__}.{name}"
        for owner, old in zip(_PATCHED, before, strict=True)
        for name in {*old, *vars(owner)}
        if not name.startswith("__")
        and old.get(name, missing) is not vars(owner).get(name, missing)
        and not isinstance(vars(owner).get(name), type(sys))
        and name != "manual_seed"
    ]


def state() -> dict[str, Any]:
    """Everything that an interrupt may leave behind, in words."""
    monitoring: Any = getattr(sys, "monitoring", None)
    gc.collect()
    found: dict[str, Any] = {
        "tracer": repr(sys.gettrace()),
        "tracer of new threads": repr(threading.gettrace()),
        "monitoring": [monitoring.get_tool(tool) for tool in range(6)] if monitoring else [],
        "gc": gc.isenabled(),
        "recursion limit": sys.getrecursionlimit(),
        "handlers": [repr(signal.getsignal(number)) for number in signal.valid_signals()],
        "held": uninterrupted_module._holder is not None,
        "lock": simulated_gpu._busy.locked(),
        "dispatch modes": len(_get_current_dispatch_mode_stack()),
        "function modes": len(_get_current_function_mode_stack()),
        "simulations": len(active.simulations),
        "observers": len(active.observers),
        "views": sorted(program_view._views),
        "windows": {
            device.name: (len(tracker.segments), len(tracker._windows), tracker._awaiting)
            for device in find_devices()
            for tracker in [peak_tracker(device)]
        },
        "hooks": [repr(sys.excepthook), repr(sys.unraisablehook), repr(threading.excepthook)],
        "streams": [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
        "filters": len(warnings.filters),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "children": sorted(_children()),
        "files": sorted(_files()),
        "folder": os.getcwd(),
        "arguments": list(sys.argv),
        "temporary": sorted(_temporary_files()),
    }
    machine = active.machine
    if machine is not None:
        gpu = machine.gpus[0]
        found["in use"] = gpu.locked(lambda: gpu.allocator.active_bytes)
        found["labels"] = sum(1 for _ in machine.living())
    return found


def _temporary_files() -> Iterator[str]:
    for name in os.listdir(tempfile.gettempdir()):
        if not name.startswith("pytorch-memlab-fit-"):  # ``fit`` leaves the outputs of its runs
            yield name


def _children() -> Iterator[str]:
    folder = Path("/proc/self/task")
    for thread in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(OSError):  # the thread has ended
            yield from (thread / "children").read_text().split()


def _files() -> Iterator[str]:
    folder = "/proc/self/fd"
    for number in os.listdir(folder) if os.path.isdir(folder) else ():
        with contextlib.suppress(OSError):
            yield os.readlink(f"{folder}/{number}")


class Scenario:
    """Something that a program does with this package, again and again in one process."""

    def __init__(self) -> None:
        self.exits = contextlib.ExitStack()

    def begin(self) -> None:
        """Make what stays over all interrupts."""

    def work(self) -> None:
        """Do the work that is interrupted."""
        raise NotImplementedError

    def settle(self) -> None:
        """Do what a program does next."""


class Simulation(Scenario):
    """A simulation begins, allocates and ends."""

    def work(self) -> None:
        """Do the work that is interrupted."""
        with simulate("24GiB"):
            torch.empty(10, device="cuda").add_(1)


class InSimulation(Scenario):
    """Something inside a simulation that goes on."""

    def begin(self) -> None:
        """Make what stays over all interrupts."""
        self.exits.enter_context(simulate("24GiB"))
        self.kept = torch.ones(64, 64, device="cuda", requires_grad=True)
        self.work()

    def settle(self) -> None:
        """The next operation raises an interrupt that came in a finalizer."""
        self.kept.grad = None
        for _ in range(2):
            with contextlib.suppress(Interrupted):
                torch.empty(1, device="cuda")


class Allocation(InSimulation):
    """Tensors are made, changed and freed."""

    def work(self) -> None:
        """Do the work that is interrupted."""
        held = torch.empty(3000, device="cuda")
        held.resize_(5000)
        product = self.kept @ self.kept
        torch.cumsum(product.detach(), 0).sort()
        product.sum().backward()
        self.kept.grad = None
        torch.cuda.memory_stats()


class ScopeOver(InSimulation):
    """A scope is opened and closed."""

    def work(self) -> None:
        """Do the work that is interrupted."""
        with PeakScope("cuda:0") as scope:
            torch.empty(3000, device="cuda")
            scope.reset()


def profiled() -> None:
    """A function with lines."""
    held = torch.empty(3000, device="cuda")
    held = held * 2
    del held


class Profile(InSimulation):
    """A line profiler is on while a function runs."""

    def work(self) -> None:
        """Do the work that is interrupted."""
        with LineProfiler(profiled):
            profiled()


class ProfileAround(Scenario):
    """A line profiler is on while a simulation begins and ends."""

    def work(self) -> None:
        """Do the work that is interrupted."""
        with LineProfiler(profiled), simulate("24GiB"):
            profiled()


class Command(Scenario):
    """A command of the command line, in this process."""

    arguments: tuple[str, ...] = ()

    def begin(self) -> None:
        """Make what stays over all interrupts."""
        self.script = Path(tempfile.gettempdir()) / "program.py"
        self.script.write_text(_PROGRAM)
        self.work()

    def work(self) -> None:
        """Do the work that is interrupted."""
        output = io.StringIO()
        with (
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
            contextlib.suppress(SystemExit),
        ):
            command_line([*self.arguments, str(self.script)])


class Run(Command):
    """``run``: the program is simulated and profiled."""

    arguments = ("run", "--gpu", "t4")


class Fit(Command):
    """``fit``: forks run the program."""

    arguments = ("fit", "--gpu", "t4,a100")


class Notebook(Scenario):
    """Cells with a measurement."""

    def begin(self) -> None:
        """Make what stays over all interrupts."""
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        config = Config(HistoryManager={"enabled": False})
        self.shell: Any = InteractiveShell.instance(config=config)
        self.run("%load_ext pytorch_memlab")
        self.run("import torch")
        self.run("%simulate t4")
        self.work()
        self.settle()

    def run(self, source: str) -> None:
        """Run a cell."""
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            self.shell.run_cell(source)

    def work(self) -> None:
        """Do the work that is interrupted."""
        self.run(
            "%%mlrun -f profiled\ndef profiled():\n    x = torch.ones(9, device='cuda')\nprofiled()"
        )
        self.run("from pytorch_memlab import CellLogger; logger = CellLogger(); logger.start()")
        self.run("x = torch.ones(9, device='cuda'); del x")
        self.run("logger.stop()")

    def settle(self) -> None:
        """Stop what an interrupted cell left for the user to stop."""
        self.run("_ = [each.stop() for each in [globals().pop('logger', None)] if each]; del _")
        self.run("x = None")
        sys.last_value = sys.last_traceback = None
        self.shell.user_ns.pop("profiled", None)


SCENARIOS: Final[dict[str, tuple[type[Scenario], float]]] = {
    "simulate": (Simulation, 0.15),
    "allocation": (Allocation, 0.25),
    "scope": (ScopeOver, 0.25),
    "profile": (Profile, 0.25),
    "profile around": (ProfileAround, 0.05),
    "run": (Run, 0.03),
    "fit": (Fit, 0.003),
    "notebook": (Notebook, 0.017),
}
"""Each with its share of the interrupts."""


class Counting:
    """Counts the places where Python may run a handler, and interrupts at one of them."""

    def __init__(self, place: int | None) -> None:
        self.place = place
        self.passed = 0
        self.where = ""

    def profile(self, frame: FrameType, event: str, _arg: object) -> None:
        """The profile function."""
        if event not in ("call", "c_return") or frame.f_code.co_filename in (_HERE, _THREADING):
            return
        self.passed += 1
        if self.passed == self.place:
            sys.setprofile(None)
            code = frame.f_code
            self.where = f"{code.co_filename}:{frame.f_lineno} {code.co_name} {event}"
            signal.raise_signal(signal.SIGINT)


def at_place(work: Callable[[], object], place: int | None) -> Counting:
    """Do some work and interrupt it at one place; None only counts the places."""
    counting = Counting(place)
    hidden_calls.CAN_HIDE = False  # signals arrive also in the calls that a tracer need not see
    try:
        try:
            sys.setprofile(counting.profile)
            work()
        finally:
            sys.setprofile(None)
    except Interrupted:
        pass
    return counting


def by_timer(work: Callable[[], object], seconds: float) -> bool:
    """Do some work, with SIGALRM after a time; False if it came too late."""
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
            work()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupted:
        return True
    return False


def by_thread(work: Callable[[], object], seconds: float) -> bool:
    """As ``by_timer``, with SIGINT from another thread."""
    ended: list[bool] = []
    over: list[bool] = []

    def send() -> None:
        time.sleep(seconds)
        if not ended:
            os.kill(os.getpid(), signal.SIGINT)
        over.append(True)

    came = False
    try:
        _thread.start_new_thread(send, ())  # one of ``threading`` would be simulated
        work()
        ended.append(True)
    except Interrupted:
        came = True
    while True:
        try:
            while not over:
                time.sleep(1e-4)
            time.sleep(0)  # where one that was sent last arrives
            return came
        except Interrupted:
            came = came or not ended


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """All differences, in words."""
    return [
        f"{name}: {before.get(name)} -> {value}"
        for name, value in after.items()
        if before.get(name) != value
    ]


def child(scenario: str, seed: int, count: int, output: Path) -> None:
    """Interrupt a scenario some times; one line of JSON for each interrupt."""
    faulthandler.enable()
    folder = tempfile.mkdtemp(dir=output.parent)
    tempfile.tempdir = folder
    os.environ["TMPDIR"] = folder
    os.chdir(folder)
    sys.argv = ["program"]
    torch.set_num_threads(1)
    for number in (signal.SIGINT, signal.SIGALRM):
        signal.signal(number, _raise)
    draw = random.Random(f"{scenario} {seed}")
    doing = SCENARIOS[scenario][0]()
    doing.begin()
    doing.work()
    doing.settle()
    begun = time.perf_counter()
    doing.work()
    seconds = time.perf_counter() - begun
    places = at_place(doing.work, None).passed
    doing.settle()
    gc.collect()
    gc.freeze()  # a search for cycles is short from now on
    with open(output, "a") as file:
        before, attributes = state(), names()
        for _ in range(count):
            kind = draw.choice(["place", "place", "timer", "thread"])
            where = ""
            if kind == "place":
                counting = at_place(doing.work, draw.randint(1, places))
                where, came = counting.where, bool(counting.where)
            else:
                interrupt = by_timer if kind == "timer" else by_thread
                came = interrupt(doing.work, draw.random() * seconds)
            doing.settle()
            left = differences(before, state()) + changed(attributes)
            if left:  # a thread that was told to end may still be at it
                time.sleep(0.5)
                left = differences(before, state()) + changed(attributes)
            file.write(json.dumps([scenario, kind, came, where, left]) + "\n")
            file.flush()
            if left:
                break
    os.chdir("/")
    shutil.rmtree(folder, ignore_errors=True)
    doing.exits.close()


def forked(scenario: str, seed: int, count: int, output: Path) -> int:
    """Interrupt a scenario in a fork of this process; its exit status."""
    process = os.fork()
    if not process:
        status = 1
        try:
            signal.alarm(0)
            child(scenario, seed, count, output)
            status = 0
        except BaseException as error:
            with open(output, "a") as file:
                told = f"{type(error).__name__}: {error} {error.__traceback__ and _place(error)}"
                file.write(json.dumps([scenario, "harness", False, "", [told]]) + "\n")
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _place(error: BaseException) -> str:
    return " < ".join(
        f"{Path(one.filename).name}:{one.lineno}"
        for one in traceback.extract_tb(error.__traceback__)[-5:]
    )


def main() -> None:
    """Interrupt all scenarios, and print how many interrupts came and what they left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="interrupts (default: 20000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scenario", choices=SCENARIOS, action="append")
    parser.add_argument("--remnants", type=int, default=40, help="stop after so many")
    options = parser.parse_args()
    chosen = options.scenario or list(SCENARIOS)
    share = sum(SCENARIOS[name][1] for name in chosen)
    total: Counter[str] = Counter()
    left_behind: list[str] = []
    with tempfile.TemporaryDirectory(prefix="interrupts-") as folder:
        for name in chosen:
            wanted = round(options.count * SCENARIOS[name][1] / share)
            seed, done = options.seed, 0
            begun = time.perf_counter()
            while done < wanted and len(left_behind) < options.remnants:
                output = Path(folder) / f"{name.replace(' ', '-')}-{seed}.jsonl"
                status = forked(name, seed, min(_IN_ONE_FORK, wanted - done), output)
                lines = (
                    [json.loads(line) for line in output.read_text().splitlines()]
                    if output.exists()
                    else []
                )
                for scenario, kind, came, where, left in lines:
                    done += 1
                    total[f"{scenario}: {kind}" if came else f"{scenario}: too late"] += 1
                    if left:
                        left_behind.append(f"{scenario}, {kind}, seed {seed}, {where}: {left}")
                        print(left_behind[-1], flush=True)
                if status:
                    done += 1
                    left_behind.append(f"{name}, seed {seed}: exit status {status}")
                    print(left_behind[-1], flush=True)
                seed += 1
            print(f"{name}: {done} in {time.perf_counter() - begun:.0f} s", flush=True)
    for what, count in sorted(total.items()):
        print(f"{what:<30} {count:>7,}")
    came = sum(count for what, count in total.items() if not what.endswith("too late"))
    print(f"{'interrupts that came':<30} {came:>7,}")
    print(f"{'that left something':<30} {len(left_behind):>7,}")
    sys.exit(bool(left_behind))


if __name__ == "__main__":
    main()
