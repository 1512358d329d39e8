"""A capture that ends puts back the values that it wrote over, whatever shared their memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pytorch_memlab.simulation.dispatch.captured_ops import OpRecording


def test_the_first_that_had_the_memory_has_its_values_again() -> None:
    memory = np.full(4, 5, dtype=np.uint8)
    no_machine: Any = None

    class OfOnePool(OpRecording):
        def _pool_memory(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
            return torch.from_numpy(memory).untyped_storage()

    recording = OfOnePool(no_machine)
    given, died = torch.from_numpy(memory), torch.from_numpy(memory)
    recording.save(given)
    memory.fill(1)
    recording.save(died)
    key = died.untyped_storage()._cdata
    del died
    others: list[torch.Tensor] = []
    while not others or others[-1].untyped_storage()._cdata != key:
        others.append(torch.from_numpy(memory))
        assert len(others) < 10_000
    memory.fill(2)
    recording.save(others[-1])
    recording.restore()
    assert memory.tolist() == [5, 5, 5, 5]
