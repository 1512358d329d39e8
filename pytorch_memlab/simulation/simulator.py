"""``simulate``: run CUDA code on this machine as if it had GPUs.

The module is not called ``simulate``: as a submodule it would hide the class of that name, which
``pytorch_memlab.simulation`` exports.
"""

from __future__ import annotations

import functools
import os
import reprlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from .._common.frames import warned_lines
from .._common.frames.traceback_frames import is_without_frames, without_frames
from .._common.interrupts.uninterrupted import uninterrupted
from .._common.interrupts.whole_exit import WholeExit
from .._common.patching.patches import Patches
from .._common.patching.wrapping import decorated
from .._common.process.uncaught_errors import uncaught
from .._common.text.quoted import quoted
from .._common.torch.storages import raise_kept
from ..errors import UsageError
from . import third_party
from .autocast import autocast
from .child_processes import start as child_processes
from .compiled import torch_compile
from .dispatch.modes import simulated_modes
from .dry_run.files import installed as overlay
from .hardware.gpu import DEFAULT_GPU, GPU
from .hardware.presets import find_gpu
from .machine import active
from .machine.assumed_sizes import AssumedSizes
from .machine.device_properties import VISIBLE_DEVICES
from .machine.machine import Machine, Strictness
from .machine.simulated_gpu import MemoryOverhead
from .machine.tensor_values import TensorValues
from .ops.core import cuda_dispatch
from .torch_api import (
    autograd,
    backends,
    compilers,
    constructors,
    cuda,
    cuda_comm,
    device_checks,
    distributions,
    dlpack,
    files,
    memory_history,
    nn,
    profiler,
    storage,
    tensor,
)
from .torch_api.distributed import process_groups

Function = TypeVar("Function", bound=Callable[..., Any])

_MOST_GPUS = 128


class simulate:  # noqa: N801 - reads as the verb that it is
    """Simulated CUDA GPUs for unmodified programs, in every thread that they start.

    A simulated CUDA tensor is a CPU tensor with a label. A model of PyTorch's caching allocator
    counts it to the byte, and counts what kernels take on top of their outputs. A simulation
    inside another one has its own GPUs; there, tensors of the outer one are CPU tensors. As a
    decorator it simulates each call of a function; of a coroutine or a generator, until it ends.

    Args:
        gpu: name of a GPU such as ``"h100"``, a size such as ``"24GiB"`` or bytes, a ``GPU``, or
            the path of a TOML file that describes one.
        count: number of GPUs. ``CUDA_VISIBLE_DEVICES`` hides some, as with CUDA.
        compute: False for a dry run. Ops then return tensors with shapes but without values, which
            take no host memory, so that a step of any model takes seconds or minutes. If the
            program reads a value, it gets a placeholder, and the line profiler marks the line.
        context: size of the CUDA context on each GPU, such as ``"450MiB"``, or bytes. The default
            is an estimate from published messages for a GPU with a name
            (``hardware/presets.toml``), and 0 for a size.
        others: size of the memory that other processes use on each GPU. The default is 0.
        allow_writes: True lets a dry run change files. Otherwise no file or folder that is there
            is changed, removed or renamed, and no file is written with tensors that have no
            values. The program sees its own changes until the simulation ends. The first path is
            named on standard error, all of them below the tables. New files and folders without
            such tensors are made, and commands that the program starts run.
        assume: sizes that values decide, for a dry run, which otherwise assumes that they are as
            large as can be: ``{"nonzero": 0.001}``. A key is the name of an op (``nonzero``,
            ``mask``, ``masked_select``, ``unique``, ``unique_consecutive``,
            ``repeat_interleave``, ``bincount``, ``coalesce``, ``nms``) or a line, such as
            ``"train.py:12"``, which goes before it. A float is a fraction of the elements, rounded
            up; an int a number of elements; a text is either, as ``"0.1%"``.
        strict: True raises an error at everything that the line profiler marks ``?``: an op
            without a memory model, memory of unknown size; and at values and sizes that a dry run
            assumes, which it marks ``*``.
            ``"estimates"`` also raises at everything that it marks ``~``: estimates.

    Raises:
        UnknownGPUError: there is no such name, size or file; the message lists the names.
        UsageError: ``count`` is no positive int; ``assume`` has a name, a line or an amount that
            cannot be, or the run computes; ``context`` or ``others`` is no size, or they
            leave no memory; ``CUDA_VISIBLE_DEVICES`` hides all GPUs; or this object is on already.
        StrictSimulationError: ``strict`` does not allow what happened.

    >>> with simulate("24GiB"):
    ...     linear = torch.nn.Linear(100, 100).cuda()
    ...     torch.cuda.memory_allocated()
    40960
    >>> torch.cuda.is_available()
    False
    >>> with simulate("24GiB", context="500MiB", others="2GiB"):
    ...     free, total = torch.cuda.mem_get_info()
    ...     (total - free) // 2**20
    2548
    >>> with simulate("4TiB", compute=False):
    ...     weight = torch.empty(2**20, 2**20, device="cuda")
    ...     torch.cuda.memory_allocated() == 4 * 2**40
    True
    """

    _is_used = True  # until it is made: a mistake in an argument is told by itself
    _keeps_all_files = False  # whether new files are held back too, also if it computes

    def __init__(
        self,
        gpu: str | int | GPU = DEFAULT_GPU,
        count: int = 1,
        *,
        compute: bool = True,
        strict: Strictness = False,
        allow_writes: bool = False,
        context: str | int | None = None,
        others: str | int = 0,
        assume: Mapping[str, str | int | float] | None = None,
    ) -> None:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise UsageError(f"count must be a positive int, not {reprlib.repr(count)}")
        if count > _MOST_GPUS:
            raise UsageError(
                f"count must be {_MOST_GPUS} or less, as torch keeps the index of a device in 8 "
                "bits: simulate one rank of a larger world"
            )
        if not isinstance(strict, bool) and strict != "estimates":
            raise UsageError(f'strict must be True, False or "estimates", not {quoted(strict)}')
        if assume and compute:
            raise UsageError("assume is for compute=False: any other run computes the sizes")
        self._gpu = gpu
        self._model = find_gpu(gpu)
        self._options: dict[str, Any] = {
            "count": count,
            "compute": compute,
            "strict": strict,
            "allow_writes": allow_writes,
            "context": context,
            "others": others,
            "assume": AssumedSizes(assume).given(),
        }
        self._taken = MemoryOverhead.of(self._model, context, others)
        self._exits: ExitStack | None = None
        self._machine: Machine | None = None
        self._is_used = False

    def __call__(self, func: Function) -> Function:
        """Decorate: simulate while the function runs, with fresh GPUs for each call."""
        self._is_used = True
        fresh = partial(type(self), self._gpu, **self._options)
        return decorated(fresh, func, "simulate")  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        """The simulated GPUs, and on or off."""
        state = "off" if self._exits is None else "on"
        return f"<simulate {self._options['count']} x {self._model.name}: {state}>"

    def __enter__(self) -> Machine:
        """Begin to simulate.

        Returns:
            the simulated GPUs.
        """
        return self._entered(None)

    def resume(self) -> Machine:
        """Begin again, with the GPUs and the tensors that were there when this ended last.

        Returns:
            the simulated GPUs; new ones if there were none.
        """
        return self._entered(self._machine)

    def _entered(self, machine: Machine | None) -> Machine:
        if self._exits is not None:
            raise UsageError("this simulation is on already: make another to nest one")
        self._is_used = True
        if simulate_without_traces.stands_for_others and active.machine is not None:
            self._exits = ExitStack()
            return active.machine
        try:
            with uninterrupted():
                machine = self._begin(machine)
        except BaseException:  # Ctrl-C too, which waited until all was on
            self._end(None, [])
            raise
        return machine

    def _begin(self, machine: Machine | None) -> Machine:
        machine = self._machine = self._made() if machine is None else machine
        with ExitStack() as exits:
            uncaught.watch()
            exits.callback(uncaught.unwatch)
            exits.callback(raise_kept)
            exits.callback(setattr, active, "machine", active.machine)
            if self._keeps_all_files or (machine.is_dry_run and not self._options["allow_writes"]):
                _begin_overlay(machine, exits, keeps_new=self._keeps_all_files)
            active.machine = machine
            exits.enter_context(_installed(machine))
            exits.callback(active.tell, machine, False)
            active.tell(machine, True)
            paths = {"assume": AssumedSizes(self._options["assume"]).resolved()}
            options = {**self._options, **paths}
            exits.enter_context(child_processes.simulated(self._model, options))
            self._exits = exits.pop_all()
        active.simulations[id(self)] = self
        return machine

    def _made(self) -> Machine:
        sizes = AssumedSizes(self._options["assume"])
        values = None if self._options["compute"] else TensorValues(sizes)
        count = self._options["count"]
        machine = Machine(self._model, count, values, self._taken)
        if not machine.gpus:
            raise UsageError(
                f"{VISIBLE_DEVICES}={os.environ[VISIBLE_DEVICES]!r} names none of the "
                f"{count} simulated GPUs: unset it, or name those from 0 to {count - 1}"
            )
        machine.strict = self._options["strict"]
        if values is not None:
            values.reads.strict = bool(self._options["strict"])
            from .dry_run.executor import DryRunExecutor

            machine.execute = DryRunExecutor(values).execute
        return machine

    def _end(self, error: BaseException | None, _mark: list[None]) -> None:
        """Put everything back as it was; explain an out-of-memory error that was not handled."""
        if self._exits is not None and error is not None:
            uncaught.add(error)
        with uninterrupted():
            active.simulations.pop(id(self), None)
            exits, self._exits = self._exits, None
            if exits is not None:
                exits.close()

    if TYPE_CHECKING:

        def __exit__(self, *error: object) -> None:
            """Put everything back as it was."""

    else:
        __exit__ = WholeExit(_end)

    def __del__(self) -> None:
        if not self._is_used and not sys.is_finalizing():
            warnings.warn(
                f"simulate({self._gpu!r}) was never entered, so nothing was simulated: write"
                " `with simulate(...):`, or decorate a function with it",
                stacklevel=2,
            )


class simulate_without_traces(simulate):  # noqa: N801 - as its base
    """A simulation after which all files are as before, new ones too."""

    _keeps_all_files = True
    stands_for_others = False
    """Set in the process of a trial: a simulation that the program begins is this one."""


def _begin_overlay(machine: Machine, exits: ExitStack, *, keeps_new: bool) -> None:
    if os.name == "nt":
        print(
            "pytorch-memlab: dry run: on Windows files are changed as in any other run",
            file=sys.stderr,
        )
        return
    files = overlay.begin()
    if keeps_new:
        files.keep_new()
    machine.kept_files = files
    exits.callback(overlay.end)


_INSTALLED_IN_ORDER = (
    compilers,  # TorchScript's table of functions, before any of them is replaced
    constructors,
    device_checks,
    distributions,
    dlpack,
    backends,
    process_groups,
    nn,
    cuda_comm,
    autocast,
    tensor,
    storage,
    files,
    autograd,
    memory_history,
    profiler,
    cuda,  # refuses every call of CUDA that none before has replaced
    torch_compile,  # traces the functions that are replaced
    third_party,  # holds functions of torch.cuda
)


_WITHOUT_FRAMES = (
    *(torch, torch._C, torch._C._nn, torch.Tensor, torch.UntypedStorage),
    *(torch.autograd, torch.cuda, torch.cuda.random, torch.serialization),
)
"""Errors name no frame of what stands for their functions; see ``clear_internal_frames``."""


_FUNCTIONS = (FunctionType, MethodType, functools.partial)


class _Replacements(Patches):
    """The names of torch that the simulation replaces."""

    def set(self, owner: Any, name: str, value: Any) -> None:
        if (
            (owner in _WITHOUT_FRAMES or owner is sys.modules.get("numpy"))
            and name != "compile"  # which asks who calls it
            and type(value) in _FUNCTIONS
            and not is_without_frames(value)
        ):
            is_in_python = type(getattr(owner, name, None)) is FunctionType
            value = without_frames(value, is_in_python=is_in_python)
        super().set(owner, name, value)


@contextmanager
def _installed(machine: Machine) -> Iterator[None]:
    patches = _Replacements()
    with ExitStack() as exits:
        exits.callback(patches.undo)
        for module in _INSTALLED_IN_ORDER:
            module.install(machine, patches)
        warned_lines.install(patches)
        patches.around(threading.Thread, "start")(partial(_start_simulated, machine))
        exits.enter_context(cuda_dispatch.installed())
        exits.enter_context(_modes(machine))
        exits.enter_context(_default_device_kept())
        yield


@contextmanager
def _modes(machine: Machine) -> Iterator[None]:
    """Simulate in this thread: CUDA's autocast, and the two modes."""
    with autocast.autocast_key_included(), simulated_modes(machine):
        yield


def _start_simulated(
    machine: Machine, start: Callable[[threading.Thread], None], thread: threading.Thread
) -> None:
    """Start a thread of the program, in which the simulation holds too."""
    attributes = vars(thread)
    run = thread.run
    before = {name: attributes[name] for name in ("run",) if name in attributes}

    def put_back() -> None:
        attributes.pop("run", None)
        attributes.update(before)  # of the program, or of a simulation around this one

    def simulated() -> None:
        put_back()
        with _modes(machine):
            run()

    thread.run = simulated  # type: ignore[method-assign]
    try:
        start(thread)
    except RuntimeError:  # it cannot be started
        put_back()
        raise


@contextmanager
def _default_device_kept() -> Iterator[None]:
    # torch.get_default_device() fails in torch 2.6 once a default was set and taken back.
    before = torch.empty(0).device
    try:
        yield
    finally:
        if torch.empty(0).device != before:
            torch.set_default_device(None if before.type == "cpu" else before)
