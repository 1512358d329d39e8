"""Memory of the CPU that the program registers with CUDA (``cudaHostRegister``): it is pinned."""

from __future__ import annotations

from typing import Final

SUCCESS: Final = 0
INVALID_VALUE: Final = 1
ALREADY_REGISTERED: Final = 712
NOT_REGISTERED: Final = 713


class RegisteredMemory:
    """The ranges of addresses; calls return the error codes of CUDA's runtime."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}  # by first address

    def register(self, address: int, nbytes: int) -> int:
        if not address or nbytes <= 0:
            return INVALID_VALUE
        for start, size in self._sizes.items():
            if address < start + size and start < address + nbytes:
                return ALREADY_REGISTERED
        self._sizes[address] = nbytes
        return SUCCESS

    def unregister(self, address: int) -> int:
        return SUCCESS if self._sizes.pop(address, None) else NOT_REGISTERED

    def holds(self, address: int) -> bool:
        return any(0 <= address - start < size for start, size in self._sizes.items())

    def __bool__(self) -> bool:
        return bool(self._sizes)
