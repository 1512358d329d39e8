"""The CUDA context of this process, released and created again by checkpoints of the driver.

Two ways lead there: the driver's own functions through the package ``cuda.bindings``, and NVIDIA's
tool ``cuda-checkpoint``. Both know the same four actions on a process, and its state:

    running --lock--> locked --checkpoint--> checkpointed --restore--> locked --unlock--> running

https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__CHECKPOINT.html,
https://github.com/NVIDIA/cuda-checkpoint
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from typing import Any, Literal

import torch

from .._common.text.prose_size import prose_size
from ..devices import simulated_machine
from ..errors import ContextReleaseError
from ..simulation.inspect import Machine

RUNNING, LOCKED, SUSPENDED = "running", "locked", "checkpointed"
"""States as the tool prints them; of any other a process does not come back."""

Action = Literal["lock", "checkpoint", "restore", "unlock"]

_OLDEST_DRIVER = 12080
"""CUDA version of the drivers with these calls, 570 and later: 1000 * major + 10 * minor."""

_LOCK_TIMEOUT = 10_000
"""Milliseconds for work that was given to the GPU before to end; all of ours has ended."""

_TOOL = "cuda-checkpoint"


class BoundDriver:
    """The functions of the driver, in ``cuda.bindings.driver``."""

    def __init__(self, bindings: Any) -> None:
        self._bindings = bindings

    def act(self, action: Action) -> None:
        """Call the function of that name on this process."""
        arguments = None
        if action == "lock":
            arguments = self._bindings.CUcheckpointLockArgs()
            arguments.timeoutMs = _LOCK_TIMEOUT
        self._call(f"cuCheckpointProcess{action.capitalize()}", arguments)

    def state(self) -> str:
        """Ask for the state of this process."""
        (state,) = self._call("cuCheckpointProcessGetState")
        return str(state.name).rpartition("_")[2].lower()

    def _call(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        try:
            error, *results = getattr(self._bindings, name)(os.getpid(), *arguments)
        except RuntimeError as problem:  # the driver has no such function
            raise ContextReleaseError(f"{name} failed: {problem}") from problem
        if error != self._bindings.CUresult.CUDA_SUCCESS:
            raise ContextReleaseError(f"{name} failed: {error.name}")
        return tuple(results)


class ToolDriver:
    """NVIDIA's command ``cuda-checkpoint``."""

    def __init__(self, path: str) -> None:
        self._path = path

    def act(self, action: Action) -> None:
        """Run the command for that action on this process."""
        limit = ["--timeout", str(_LOCK_TIMEOUT)] if action == "lock" else []
        self._run("--action", action, *limit)

    def state(self) -> str:
        """The state of this process, as the command prints it."""
        return self._run("--get-state").strip().lower()

    def _run(self, *arguments: str) -> str:
        command = [self._path, *arguments, "--pid", str(os.getpid())]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as problem:
            raise ContextReleaseError(f"{self._path} failed: {problem}") from problem
        if done.returncode:
            said = (done.stderr or done.stdout).strip() or f"exit status {done.returncode}"
            raise ContextReleaseError(f"{' '.join(command)} failed: {said}")
        return done.stdout


Driver = BoundDriver | ToolDriver
"""A way to the driver, which checkpoints this process.

``act`` raises ``ContextReleaseError`` with the words of the driver if it fails. ``state`` is
``RUNNING``, ``LOCKED``, ``SUSPENDED`` or something worse.
"""


def find_driver() -> Driver:
    """The first way to the driver here. Raises ``ContextReleaseError`` if there is none."""
    if sys.platform != "linux":
        raise _impossible("the driver can do so on Linux only")
    if torch.version.cuda is None:
        raise _impossible("only NVIDIA's driver can do so, and this PyTorch is not made for it")
    version = _driver_version()
    if version < _OLDEST_DRIVER:
        raise _impossible(
            f"this driver is one for CUDA {version // 1000}.{version % 1000 // 10}: NVIDIA's "
            "driver 570 (CUDA 12.8) or later is needed"
        )
    bindings = _bindings()
    if bindings is not None:
        return BoundDriver(bindings)
    tool = shutil.which(_TOOL)
    if tool is not None:
        return ToolDriver(tool)
    raise _impossible(
        "install cuda-bindings (pip install cuda-bindings), or put NVIDIA's tool cuda-checkpoint "
        "on the PATH"
    )


def _driver_version() -> int:
    ask: Any = torch._C
    version: int = ask._cuda_getDriverVersion()
    return version


def _bindings() -> Any:
    """``cuda.bindings.driver`` if it is there and has these functions, otherwise None."""
    try:
        bindings = importlib.import_module("cuda.bindings.driver")
    except ImportError:
        return None
    return bindings if hasattr(bindings, "cuCheckpointProcessLock") else None


def _impossible(why: str) -> ContextReleaseError:
    return ContextReleaseError(
        f"the CUDA context cannot be released: {why}. Nothing was moved; yield_memory() without "
        "release_context releases everything else"
    )


_LOST = "CUDA is lost in this process, but all tensors are safe in host memory: save them"


class CheckpointedContext:
    """A context that the NVIDIA driver moves into host memory, and back; addresses are kept."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def suspend(self) -> None:
        """Lock the calls of CUDA of this process, and checkpoint it."""
        try:
            self._driver.act("lock")
            self._driver.act("checkpoint")
        except ContextReleaseError as error:
            with suppress(ContextReleaseError):
                if self._driver.state() == LOCKED:
                    self._driver.act("unlock")
            state = "everything is on the GPU as before" if self.is_usable() else _LOST
            raise ContextReleaseError(f"{error}; {state}") from error

    def resume(self) -> None:
        """Restore the process, and unlock its calls of CUDA."""
        try:
            if self._driver.state() == SUSPENDED:
                self._driver.act("restore")
            if self._driver.state() == LOCKED:
                self._driver.act("unlock")
        except ContextReleaseError as error:
            raise ContextReleaseError(
                f"{error}; all tensors are still in host memory, safe: call restore() again"
            ) from error

    def is_usable(self) -> bool:
        """True if the driver lets CUDA be called."""
        try:
            return self._driver.state() == RUNNING
        except ContextReleaseError:
            return False


class SimulatedContext:
    """The contexts of simulated GPUs, of the size of ``simulate(context=...)``."""

    def __init__(self, machine: Machine) -> None:
        self._drivers = [gpu.driver for gpu in machine.known_gpus]
        self._taken = [driver.context for driver in self._drivers]

    def suspend(self) -> None:
        """From now on the contexts take nothing."""
        for driver in self._drivers:
            driver.context = 0

    def resume(self) -> None:
        """Take for each context what it took before."""
        for index, (driver, taken) in enumerate(zip(self._drivers, self._taken, strict=True)):
            if driver.free_memory() < taken:
                raise ContextReleaseError(
                    f"no room for the CUDA context of {prose_size(taken)} on cuda:{index}; all "
                    "tensors are still in host memory, safe: call restore() again"
                )
        for driver, taken in zip(self._drivers, self._taken, strict=True):
            driver.context = taken

    def is_usable(self) -> bool:
        """Always."""
        return True


Context = CheckpointedContext | SimulatedContext
"""The memory of this process on the GPUs outside the allocator of PyTorch."""


def find_context() -> Context | None:
    """The context of this process, real or simulated; None if CUDA was not used yet."""
    machine = simulated_machine()
    if machine is not None:
        return SimulatedContext(machine)
    if not torch.cuda.is_initialized():
        return None
    return CheckpointedContext(find_driver())
