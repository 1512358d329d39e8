"""IPython keeps the traceback of a failed cell, and with it all local variables: release them."""

from __future__ import annotations

import gc
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from .._common.patching.wrapping import decorated
from .._common.process.ipython import ipython_shell
from .._common.process.uncaught_errors import chain, forget_shown_error, message_of
from .._common.torch.library_errors import library_without_memory

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

P = ParamSpec("P")
T = TypeVar("T")

_SWITCH = "FASTAI_TB_CLEAR_FRAMES"
_DEVICE_ASSERT = "device-side assert triggered"
_OUT_OF_MEMORY = ("CUDA out of memory", "HIP out of memory")


def is_in_ipython() -> bool:
    """True in an IPython shell: of a terminal, of a notebook, or an embedded one."""
    return ipython_shell() is not None


def clear_frames(error: BaseException) -> None:
    """Drop the local variables of every frame that an exception's tracebacks hold."""
    # Tracebacks of causes, contexts and of the exceptions of a group are cleared as well. Frames
    # that still run keep their variables. The traceback itself can be printed afterwards.
    for chained_error in chain(error, suppressed=True):
        if chained_error.__traceback__ is not None:
            traceback.clear_frames(chained_error.__traceback__)
            for frame, _ in traceback.walk_tb(chained_error.__traceback__):
                # Before Python 3.13 a frame whose f_locals was read keeps a dict of them; reading
                # it again is what empties that dict.
                _ = frame.f_locals


def get_ref_free_exc_info() -> tuple[
    type[BaseException] | None, BaseException | None, TracebackType | None
]:
    """``sys.exc_info()`` of the exception in hand, its frames' local variables dropped."""
    kind, error, trace = sys.exc_info()
    if error is not None:
        clear_frames(error)
    return kind, error, trace


class gpu_mem_restore_ctx(AbstractContextManager[None]):  # noqa: N801 - the name that people know
    """Release the local variables in the traceback of any exception of the block, in IPython.

    The very same exception goes on; outside IPython nothing is changed.
    """

    def __enter__(self) -> None:
        """Nothing is done before an exception."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Clear the traceback of an exception."""
        _restore(error)


def gpu_mem_restore(func: Callable[P, T]) -> Callable[P, T]:
    """Reclaim GPU memory if a function runs out of it, or is interrupted, in IPython.

    The environment variable ``FASTAI_TB_CLEAR_FRAMES``, read at every call, set to ``"0"`` keeps
    all tracebacks as they are (``%debug`` works), to ``"1"`` clears those of all exceptions.

    Args:
        func: to decorate; a coroutine or a generator function too.

    Returns:
        a function that does the same; outside IPython nothing is changed.

    Raises:
        UsageError: it is no function.
    """
    return decorated(_restoring, func, "gpu_mem_restore")  # type: ignore[no-any-return]


ipython_tb_clear_frames_ctx = gpu_mem_restore_ctx


def ipython_tb_clear_frames(func: Callable[P, T]) -> Callable[P, T]:
    """Release the local variables in the traceback of any exception of a function, in IPython.

    Args:
        func: to decorate; a coroutine or a generator function too.

    Returns:
        a function that does the same.

    Raises:
        UsageError: it is no function.
    """
    return decorated(gpu_mem_restore_ctx, func, "ipython_tb_clear_frames")  # type: ignore[no-any-return]


def forget_last_error(shell: InteractiveShell) -> bool:
    """Release the traceback of the last failed cell; True if there was one."""
    is_forgotten = getattr(sys, "last_value", None) is not None
    # Without these, and not with None in them, %debug says that there is nothing to debug.
    forget_shown_error()
    shell.InteractiveTB.tb = None
    result = getattr(shell, "last_execution_result", None)
    if result is not None:
        is_forgotten = is_forgotten or result.error_in_exec is not None
        result.error_in_exec = None
    return is_forgotten


@contextmanager
def _restoring() -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if _is_to_be_cleared(error):
            _restore(error)
        raise


def _restore(error: BaseException | None) -> None:
    # GeneratorExit is the ordinary end of a generator that is read no further.
    if error is None or isinstance(error, GeneratorExit) or not is_in_ipython():
        return
    if _DEVICE_ASSERT in message_of(error):
        warnings.warn(
            "a device-side assert leaves the GPU unusable: restart the kernel, and set "
            "CUDA_LAUNCH_BLOCKING=1 to see where it was raised",
            stacklevel=3,
        )
    clear_frames(error)
    gc.collect()


def _is_to_be_cleared(error: BaseException) -> bool:
    match os.environ.get(_SWITCH):
        case "0":
            return False
        case "1":
            return True
    if isinstance(error, KeyboardInterrupt):
        return True
    torch = sys.modules.get("torch")
    kind = getattr(torch, "OutOfMemoryError", ())
    text = message_of(error)
    is_full = isinstance(error, kind) or library_without_memory(error) is not None
    return is_full or any(words in text for words in (*_OUT_OF_MEMORY, _DEVICE_ASSERT))
