"""Data loaders under simulation: worker processes, pinned memory and copies that do not block."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from pytorch_memlab import simulate

KIB = 2**10


class Numbers(Dataset[tuple[torch.Tensor, int]]):
    """Eight samples of 1 KiB, each full of its number."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((256,), float(index)), index


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pins", [True, False])
def test_batches_come_from_workers_and_pinned_memory(workers: int, *, pins: bool) -> None:
    with simulate("24GiB"):
        persistent = workers > 0
        loader = DataLoader(
            Numbers(),
            batch_size=4,
            num_workers=workers,
            pin_memory=pins,
            persistent_workers=persistent,
        )
        for _ in range(2):
            peaks, sums = [], []
            for samples, numbers in loader:
                assert (samples.device.type, samples.is_pinned()) == ("cpu", pins)
                assert numbers.is_pinned() is pins
                torch.cuda.reset_peak_memory_stats()
                on_gpu = samples.to("cuda", non_blocking=True)
                numbers = numbers.cuda(non_blocking=True)
                peaks.append((torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()))
                assert on_gpu.device.type == numbers.device.type == "cuda"
                assert not on_gpu.is_pinned()
                sums.append((on_gpu.sum().item(), numbers.tolist()))
                del on_gpu, numbers
            # The GPU has the batch of the moment: what waits in the loader is the host's.
            assert peaks == [(4 * KIB + 512, 4 * KIB + 512)] * 2
            assert sums == [(256.0 * 6, [0, 1, 2, 3]), (256.0 * 22, [4, 5, 6, 7])]
        assert torch.cuda.memory_allocated() == 0


def test_a_batch_kept_on_the_gpu_while_the_next_comes() -> None:
    with simulate("24GiB"):
        waiting = None
        peaks = []
        for samples, _ in DataLoader(Numbers(), batch_size=4, num_workers=2, pin_memory=True):
            waiting = (waiting, samples.cuda(non_blocking=True))[1]
            peaks.append(torch.cuda.max_memory_allocated())
        # The name is bound again when the next batch is there already.
        assert peaks == [4 * KIB, 8 * KIB]
