"""Lending the GPU when another process asks for it by a signal."""

from __future__ import annotations

import logging
import signal
import threading
import warnings
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from .._common.kept_interrupt import KeptInterrupt
from .._common.quoted import quoted
from ..errors import MemlabError, UsageError
from .context import find_context

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

_log = logging.getLogger(__name__)

_IS_OWN = "is_of_courtesy"
_LOOKS_UP_EVERY = 0.1
"""Seconds."""


class Lender(Protocol):
    """Lends the memory of the GPUs, and restores it."""

    @property
    def lends(self) -> bool:
        """True if memory is lent."""

    def yield_memory(
        self, device: int | str | torch.device | None = None, *, release_context: bool = False
    ) -> None:
        """Lend."""

    def restore(self, device: int | str | torch.device | None = None) -> None:
        """Restore."""


class SignalledCourtesy:
    """Listens to two signals, from now on until ``stop``. Made by ``Courtesy.on_signal``.

    Args:
        courtesy: lends and restores.
        yields: number of the signal to lend at.
        restores: number of the signal to restore at.
        release_context: as of ``Courtesy.yield_memory``.

    Raises:
        UsageError: these are no two signals that a program can catch, another one listens to one of
            them, or this is not the main thread.
        ContextReleaseError: the driver cannot release the context.
    """

    def __init__(
        self, courtesy: Lender, yields: int, restores: int, *, release_context: bool = False
    ) -> None:
        _check(yields, restores)
        if release_context:
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
        self._hook = _after_every_step(self.safe_point)

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
    for number in (yields, restores):
        if isinstance(number, bool) or not isinstance(number, int):
            raise UsageError(f"a signal is a number such as signal.SIGUSR1, not {quoted(number)}")
        if number not in signal.valid_signals() or number in _never_caught():
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


def _never_caught() -> set[int]:
    return {getattr(signal, name) for name in ("SIGKILL", "SIGSTOP") if hasattr(signal, name)}


def _after_every_step(call: Any) -> Any:
    """Have something called at the end of any optimizer's ``step``; returns what ends that."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    return register_optimizer_step_post_hook(lambda *_: call())
