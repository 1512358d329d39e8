"""``Courtesy``: lend the GPU for a while."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from .._common.prose_size import prose_size
from .._common.quoted import quoted
from .._common.uninterrupted import uninterrupted
from ..devices import get_device
from ..errors import MemlabError, UsageError
from ..tensors.moves import MovedStorage
from .lending import empty_all_caches, lend, refuse_traced_code, warn_of_what_stays
from .restoring import bring_back, bring_elsewhere

if TYPE_CHECKING:
    from .context import Context
    from .on_signal import SignalledCourtesy


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
        plural = "s" * (len(self._moved) != 1)
        return f"<Courtesy: {prose_size(nbytes)} in {len(self._moved)} storage{plural} lent>"

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
        if context is not None:
            self._release(context)

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
        from .on_signal import SignalledCourtesy

        return SignalledCourtesy(Courtesy(), yields, restores, release_context=release_context)

    def __enter__(self) -> Courtesy:
        self.yield_memory()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.lends:
            self.restore()

    def _release(self, context: Context) -> None:
        try:
            with uninterrupted():
                context.suspend()
                self._context = context
        except MemlabError:
            if context.is_usable():
                self.restore()
            raise


def _gpu(device: int | str | torch.device) -> torch.device:
    found = torch.device(get_device(device).name)
    if found.type != "cuda":
        raise UsageError(f"yield_memory() lends CUDA GPUs, and {quoted(device)} is none")
    return found
