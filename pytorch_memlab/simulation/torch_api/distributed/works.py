"""The works that collectives return: what the program waits for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from torch._C import _distributed_c10d as _c10d
from torch.futures import Future


def finished_work(tensors: Any) -> Any:
    future: Future[Any] = Future()
    future.set_result(tensors)
    return vars(_c10d)["_create_work_from_future"](future)


class Receipt(vars(_c10d)["Work"]):  # type: ignore[misc]
    """Tensors that are filled when the program waits for them."""

    def __init__(self, fills: Sequence[Callable[[], object]]) -> None:
        super().__init__()
        self._fills = deque(fills)

    def wait(self, timeout: Any = None) -> bool:
        while self._fills:
            self._fills.popleft()()
        return True

    is_completed = is_success = wait
    synchronize = wait


class Receipts(Receipt):
    """Several of them, which one call waits for."""

    def __init__(self, receipts: Sequence[Receipt]) -> None:
        super().__init__([receipt.wait for receipt in receipts])


class Received(vars(_c10d)["Work"]):  # type: ignore[misc]
    """A receipt that has come from some rank."""

    def __init__(self, source: int) -> None:
        super().__init__()
        self._source = source

    def wait(self, timeout: Any = None) -> bool:
        return True

    is_completed = wait

    def _source_rank(self) -> int:
        return self._source
