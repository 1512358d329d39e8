"""The stores of one simulated rank, in which nothing waits for another process."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

import torch.distributed as dist

from ....errors import UnsupportedCUDACallError
from ...machine import active

HashStore: Any = vars(dist)["HashStore"]


class SimulatedStore(HashStore):  # type: ignore[misc]
    """A store of this process alone, in which nothing waits for another process."""

    def __init__(self) -> None:
        super().__init__()
        super().set_timeout(timedelta(seconds=1))  # for C++, which does not ask ``get``

    def set_timeout(self, timeout: timedelta) -> None:
        """No other process sets keys, so a wait has no use."""

    def get(self, key: str) -> bytes:
        self.wait([key])
        value: bytes = super().get(key)
        return value

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.wait(keys)
        values: list[bytes] = super().multi_get(keys)
        return values

    def wait(self, keys: list[str], *timeout: Any) -> None:
        """Return at once, if this process has set all keys."""
        missing = [key for key in keys if not self.check([key])]
        if missing:
            raise UnsupportedCUDACallError(
                f"this process waits for {', '.join(missing)} of a store, which another process"
                " would set: one rank alone is simulated"
            )


class _Replacement(SimulatedStore):
    """A kind of store, which modules that are imported while simulating keep."""

    real: ClassVar[Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A real store where no GPU is simulated."""
        if active.machine is None:
            return cls.real(*args, **kwargs)
        return super().__new__(cls)


class SimulatedTCPStore(_Replacement):
    """``torch.distributed.TCPStore`` without a server; its arguments are those of the real one."""

    real = vars(dist)["TCPStore"]

    def __init__(self, host_name: str, port: int = 29500, *_args: Any, **_options: Any) -> None:
        super().__init__()
        self.host = host_name
        self.port = port or 29500
        self.libuvBackend = True  # the attribute's name in PyTorch


class SimulatedFileStore(_Replacement):
    """``torch.distributed.FileStore`` without a file; its arguments are those of the real one."""

    real = vars(dist)["FileStore"]

    def __init__(self, file_name: str, *_args: Any, **_options: Any) -> None:
        super().__init__()
        self.path = file_name
