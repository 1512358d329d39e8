"""``torch.distributed.TCPStore`` of a process that stands for one rank of many."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from ..errors import UnsupportedCUDACallError
from . import active

_HashStore: Any = vars(dist)["HashStore"]
_RealStore: Any = vars(dist)["TCPStore"]


class SimulatedTCPStore(_HashStore):  # type: ignore[misc]
    """A store of this process alone: no server, and nothing waits for another process.

    The arguments are those of ``torch.distributed.TCPStore``. Modules that are imported while
    simulating keep this class; outside ``simulate`` it makes real stores.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A real store where no GPU is simulated."""
        if active.machine is None:
            return _RealStore(*args, **kwargs)
        return super().__new__(cls)

    def __init__(self, host_name: str, port: int = 29500, *_args: Any, **_options: Any) -> None:
        super().__init__()
        self.host = host_name
        self.port = port or 29500
        self.libuvBackend = True  # the attribute's name in PyTorch

    def get(self, key: str) -> bytes:
        """A value that this process has set."""
        self._check_set([key])
        value: bytes = super().get(key)
        return value

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Values that this process has set."""
        self._check_set(keys)
        values: list[bytes] = super().multi_get(keys)
        return values

    def wait(self, keys: list[str], *timeout: Any) -> None:
        """Return at once, if this process has set all keys."""
        self._check_set(keys)

    def _check_set(self, keys: list[str]) -> None:
        missing = [key for key in keys if not self.check([key])]
        if missing:
            raise UnsupportedCUDACallError(
                f"this process waits for {', '.join(missing)} of a TCPStore, which another process"
                " would set: one rank alone is simulated"
            )
