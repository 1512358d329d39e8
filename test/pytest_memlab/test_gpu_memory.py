"""The memory of one test as data."""

from __future__ import annotations

from pathlib import Path

import torch

from pytorch_memlab import simulate
from pytorch_memlab.profiles.changed_tests import MeasuredTest
from pytorch_memlab.pytest_memlab.gpu_memory import GPUMemoryOfTest


def test_before_a_test_begins_everything_is_zero(tmp_path: Path) -> None:
    nothing = MeasuredTest("cuda:0", "", False, 0, 0, 0, False)
    assert GPUMemoryOfTest().measured(None, tmp_path) == nothing


def test_what_was_in_use_before_is_that_of_the_fullest_gpu(tmp_path: Path) -> None:
    with simulate("24GiB", count=2):
        kept = [torch.ones(256 << number, device=f"cuda:{number}") for number in range(2)]
        memory = GPUMemoryOfTest()
        memory.begin()
        kept.append(torch.ones(512, device="cuda:1"))
        memory.end()
        measured = memory.measured(7, tmp_path)
    assert (measured.device, measured.peak, measured.before) == ("cuda:1", 4096, 2048)
    assert (measured.gpu, measured.simulated, measured.limit) == (
        "Simulated GPU (24.00 GiB)",
        True,
        7,
    )
