"""Sockets that have a path, such as those through which a worker of a loader sends its tensors.

A path of a socket has 107 bytes at most, and those of the overlay are longer than the program's.
Linux has short names for open folders.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary

from ...._common.patching.patches import Patches
from .overlay import Overlay

_LONGEST: Final = 100  # bytes, fewer than those of any system
_OPEN_FOLDERS: Final = "/proc/self/fd"
_open_fd, _close = os.open, os.close


def install(overlay: Overlay, patches: Patches) -> None:
    family = getattr(socket, "AF_UNIX", None)
    bound: WeakKeyDictionary[socket.socket, Any] = WeakKeyDictionary()

    def has_path(unix_socket: socket.socket, address: Any) -> bool:
        is_path = isinstance(address, (str, bytes, os.PathLike))
        return overlay.is_on and unix_socket.family == family and is_path and _is_of_disk(address)

    @patches.around(socket.socket, "bind")
    def bind(original: Callable[..., None], unix_socket: socket.socket, address: Any) -> None:
        if not has_path(unix_socket, address):
            original(unix_socket, address)
            return

        def bind_to(path: Any) -> None:
            with _short(path) as short:
                original(unix_socket, short)

        try:
            overlay.make_new(bind_to, address)
        except FileExistsError:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)) from None
        bound[unix_socket] = os.fspath(address)

    @patches.around(socket.socket, "getsockname")
    def getsockname(original: Callable[..., Any], unix_socket: socket.socket) -> Any:
        return bound.get(unix_socket) or original(unix_socket)

    @patches.around(socket.socket, "connect", "connect_ex")
    def connect(original: Callable[..., Any], unix_socket: socket.socket, address: Any) -> Any:
        if not has_path(unix_socket, address):
            return original(unix_socket, address)
        with _short(overlay.to_read(address)) as short:
            return original(unix_socket, short)


def _is_of_disk(address: Any) -> bool:
    """False for the names without files that Linux has, which begin with a zero byte."""
    return os.fsencode(address)[:1] not in {b"", b"\0"}


@contextmanager
def _short(path: Any) -> Iterator[Any]:
    folder, name = os.path.split(os.fsdecode(path))
    if len(os.fsencode(path)) <= _LONGEST or not os.path.isdir(_OPEN_FOLDERS):
        yield path
        return
    descriptor = _open_fd(folder or ".", os.O_RDONLY)
    try:
        yield f"{_OPEN_FOLDERS}/{descriptor}/{name}"
    finally:
        _close(descriptor)
