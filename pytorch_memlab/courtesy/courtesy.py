"""``Courtesy``: lend the GPU for a while, or when another process asks for it by a signal."""

from __future__ import annotations

import logging
import signal
import threading
import warnings
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from .._common.interrupts.uninterrupted import KeptInterrupt, uninterrupted
from .._common.text.prose_size import counted, prose_size
from .._common.text.quoted import quoted
from ..devices import get_device
from ..errors import MemlabError, UsageError
from ..tensors.moves import MovedStorage
from .lending import empty_all_caches, lend, refuse_traced_code, warn_of_what_stays
from .restoring import bring_back, bring_elsewhere

if TYPE_CHECKING:
    from typing import Self

    from .context import Context

_log = logging.getLogger("pytorch_memlab.courtesy.on_signal")

_IS_OWN = "is_of_courtesy"
_LOOKS_UP_EVERY = 0.1
"""Seconds."""


class Courtesy:
    """Moves the CUDA tensors of this process into host memory, and back.

    It moves storages, so that views, tied weights, optimizer state, gradients and what autograd
    saved for a later backward pass still share their memory. Each tensor stays the same object.
    After ``restore`` it has the same device, strides, version and bits as before.

    While the memory is lent, a tensor is a CPU tensor in pinned memory. It can be read and changed,
    but not resized. Some tensors keep their device without memory and must not be used: leaves of
    an autograd graph that still exists (a variable such as ``loss`` keeps one), and the parts of a
    sparse tensor or a tensor subclass. Tensors that are freed in the time between stay freed.
    Views of lent tensors return with them. Other new tensors stay where they were made. Addresses
    change: pointers that other libraries keep do not follow. Do not use NumPy arrays of lent
    tensors after ``restore``.

    Keep the object as long as it lends. As a context manager it lends on entry and restores on
    exit.

    >>> with Courtesy():
    ...     pass  # another process can use the GPU
    """

    def __init__(self) -> None:
        self._moved: deque[MovedStorage] = deque()
        self._lent = False
        self._context: Context | None = None

    def __repr__(self) -> str:
        """The memory that is lent."""
        if not self.lends:
            return "<Courtesy: nothing is lent>"
        nbytes = sum(moved.host.nbytes() for moved in self._moved)
        return f"<Courtesy: {prose_size(nbytes)} in {counted(len(self._moved), 'storage')} lent>"

    @property
    def lends(self) -> bool:
        """True if memory is lent, so that ``restore`` may follow."""
        return self._lent or bool(self._moved)

    def yield_memory(
        self, device: int | str | torch.device | None = None, *, release_context: bool = False
    ) -> None:
        """Move everything from the GPUs into host memory, and release the memory of the GPUs.

        All or nothing: an interrupt or an error leaves everything on the GPUs. A second call moves
        what came to the GPUs since the first.

        Args:
            device: lend this GPU alone.
            release_context: release the CUDA context too, some hundred MiB, by letting the driver
                checkpoint the process. Until ``restore`` every call of CUDA waits, in all threads.

        Raises:
            MemlabError: host memory does not suffice, captured CUDA graphs live, or this is
                inside ``FakeTensorMode`` or a transform of ``torch.func``; nothing was moved.
            ContextReleaseError: the driver cannot release the context; nothing was moved.
            UsageError: ``device`` is no GPU, or given together with ``release_context``.
        """
        if self._context is not None:
            return
        gpu = None if device is None else _gpu(device)
        context = None
        if release_context:
            if gpu is not None:
                raise UsageError("release_context=True gives all GPUs back: leave device out")
            from .context import find_context

            context = find_context()
        lend(self._moved, gpu)
        self._lent = True
        if torch.cuda.is_initialized():
            empty_all_caches()
            warn_of_what_stays(gpu)
        if context is None:
            return
        try:
            with uninterrupted():
                context.suspend()
                self._context = context
        except MemlabError:
            if context.is_usable():
                self.restore()
            raise

    def restore(self, device: int | str | torch.device | None = None) -> None:
        """Move everything back where it came from, or elsewhere.

        Args:
            device: another GPU, or ``"cpu"``, for all that was lent. This works between steps:
                what a living graph or another object in C++ holds cannot change its device.

        Raises:
            MemlabError: ``yield_memory`` was not called before; or a GPU has no room by now: then
                the rest stays in host memory, and ``restore`` can be called again; or something
                cannot change its device, and nothing was moved.
            UnknownDeviceError: there is no such device.
        """
        if not self.lends:
            raise MemlabError("nothing to restore: yield_memory() comes first")
        refuse_traced_code()
        target = None if device is None else torch.device(get_device(device).name)
        if self._context is not None:
            with uninterrupted():
                self._context.resume()
                self._context = None
        if target is None:
            bring_back(self._moved)
        else:
            bring_elsewhere(self._moved, target)
        self._lent = False

    @staticmethod
    def on_signal(
        yields: int, restores: int, *, release_context: bool = False
    ) -> SignalledCourtesy:
        """Lend the GPU when a signal arrives, and stop until another one brings it back.

        The signal is remembered, and obeyed at the next safe point of the loop: the end of any
        optimizer's ``step()``, or a call of ``safe_point()`` where a loop has no optimizer. There
        everything is moved into host memory, and the thread waits. After the restoring signal it
        goes on as if nothing had happened. In a distributed program all processes need the
        signal, as the others would wait for this one.

        What goes wrong does not end the program: where the host has no room nothing is lent, and
        where the GPU has none the process waits for the next restoring signal; both with a warning.

        Args:
            yields: number of the signal to lend at, such as ``signal.SIGUSR1``.
            restores: number of the signal to restore at, such as ``signal.SIGUSR2``.
            release_context: as of ``yield_memory``.

        Returns:
            what listens already, until its ``stop()``; as a context manager until the end of the
            block. It then puts the signals' handlers back.

        Raises:
            UsageError: these are no two signals that a program can catch, or this is not the main
                thread.
            ContextReleaseError: the driver cannot release the context.

        >>> import signal
        >>> with Courtesy.on_signal(signal.SIGUSR1, signal.SIGUSR2) as courtesy:
        ...     for batch in range(2):
        ...         courtesy.safe_point()  # optimizer.step() ends in one by itself
        """
        return SignalledCourtesy(Courtesy(), yields, restores, release_context=release_context)

    def __enter__(self) -> Courtesy:
        self.yield_memory()
        return self

    def __exit__(self, *error: object) -> None:
        if self.lends:
            self.restore()


def _gpu(device: int | str | torch.device) -> torch.device:
    gpu = torch.device(get_device(device).name)
    if gpu.type != "cuda":
        raise UsageError(f"yield_memory() lends CUDA GPUs, and {quoted(device)} is none")
    return gpu


class SignalledCourtesy:
    """Listens to two signals, from now on until ``stop``. Made by ``Courtesy.on_signal``."""

    def __init__(
        self, courtesy: Courtesy, yields: int, restores: int, *, release_context: bool = False
    ) -> None:
        _check(yields, restores)
        if release_context:
            from .context import find_context

            find_context()  # now rather than when the signal comes
        self._courtesy = courtesy
        self._release_context = release_context
        self._restores = signal.Signals(restores)
        self._wanted = False
        self._asked_back = 0
        self._waiting = threading.Lock()
        # The one queue whose put() may interrupt a get() of the same thread.
        self._changed: SimpleQueue[None] = SimpleQueue()
        self._handlers: dict[int, Any] = {}
        for number, wanted in ((yields, True), (restores, False)):
            self._handlers[number] = signal.signal(number, self._handler(wanted))
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._hook = register_optimizer_step_post_hook(lambda *_: self.safe_point())

    def safe_point(self) -> None:
        """Lend the GPU here if a signal asked for it, and return when it is back.

        Any moment will do at which this thread is not inside ``backward``, no other thread uses
        the GPU, and no code holds bare addresses of tensors. Costs one comparison otherwise.
        """
        # A second thread goes on: it finds the GPU lent, as any other thread would.
        if self._wanted and self._waiting.acquire(blocking=False):
            try:
                with KeptInterrupt() as interrupt:
                    self._lend_and_wait(interrupt)
            finally:
                self._waiting.release()

    def stop(self) -> None:
        """Stop listening: put the signals' handlers back. A second call does nothing."""
        self._hook.remove()
        while self._handlers:
            number, handler = self._handlers.popitem()
            # None: a handler that Python did not install, and cannot put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _handler(self, wanted: bool) -> Any:
        def handle(_number: int, _frame: FrameType | None) -> None:
            self._wanted = wanted
            self._asked_back += not wanted
            self._changed.put(None)

        setattr(handle, _IS_OWN, True)
        return handle

    def _lend_and_wait(self, interrupt: KeptInterrupt) -> None:
        try:
            self._courtesy.yield_memory(release_context=self._release_context)
            _log.info("the GPU is lent, until %s arrives", self._restores.name)
            while self._wanted:
                self._wait()
                interrupt.raise_again()
        except MemlabError as error:
            self._wanted = False
            warnings.warn(f"the GPU was asked for, but is not lent: {error}", stacklevel=3)
            return
        except BaseException:  # Ctrl-C: the handler finds all as it was
            if self._courtesy.lends:
                self._courtesy.restore()
            raise
        self._bring_back(interrupt)
        _log.info("the GPU is back")

    def _bring_back(self, interrupt: KeptInterrupt) -> None:
        """Restore, at each signal again until it succeeds."""
        while True:
            asked = self._asked_back
            try:
                self._courtesy.restore()
            except MemlabError as error:
                warnings.warn(f"{error}: send {self._restores.name} again", stacklevel=4)
            else:
                return
            while self._asked_back == asked:
                self._wait()
                interrupt.raise_again()

    def _wait(self) -> None:
        """Until a signal arrives, or a moment has passed."""
        # A signal that the system delivers to another thread does not wake this one, whose turn
        # it is to run Python's handler: so it looks up from time to time.
        with suppress(Empty):
            self._changed.get(timeout=_LOOKS_UP_EVERY)


def _check(yields: int, restores: int) -> None:
    never_caught = {getattr(signal, name, None) for name in ("SIGKILL", "SIGSTOP")}
    for number in (yields, restores):
        if isinstance(number, bool) or not isinstance(number, int):
            raise UsageError(f"a signal is a number such as signal.SIGUSR1, not {quoted(number)}")
        if number not in signal.valid_signals() or number in never_caught:
            raise UsageError(f"signal {int(number)} cannot be caught; SIGUSR1 and SIGUSR2 can")
        if hasattr(signal.getsignal(number), _IS_OWN):
            name = signal.Signals(number).name
            raise UsageError(f"Courtesy.on_signal() listens to {name} already: stop() that first")
    if yields == restores:
        raise UsageError(
            f"{signal.Signals(yields).name} cannot both lend and restore: give two signals"
        )
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("Courtesy.on_signal() belongs into the main thread, as all signals do")
