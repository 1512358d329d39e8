"""Outputs that no simulated GPU can hold are refused before they fill host memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pytorch_memlab import simulate

_PROGRAM = """
import torch
from pytorch_memlab import simulate

GIB = 2**30

def peak():
    # Not ``ru_maxrss``: it begins with the peak of the process that started this one.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024

with simulate("1GiB"):
    torch.set_default_device("cuda")
    one, row, tall = torch.ones(1), torch.ones(2**15), torch.ones(2**15, 4)
    wide, first = torch.ones(2, 2**15), torch.zeros(2**15, dtype=torch.int64)
    image, host = torch.ones(1, 1, 4, 4), torch.ones(1, 1, device="cpu")
    calls = {
        "zeros": lambda: torch.zeros(GIB),
        "ones": lambda: torch.ones(2**15, 2**15, device="cuda"),
        "full": lambda: torch.full((GIB,), 2.0),
        "rand": lambda: torch.rand(GIB),
        "randperm": lambda: torch.randperm(GIB),
        "arange": lambda: torch.arange(0, 1, 2.0**-30),
        "linspace": lambda: torch.linspace(0, 1, GIB),
        "eye": lambda: torch.eye(2**15),
        "new_zeros": lambda: one.new_zeros(GIB),
        "zeros_like": lambda: torch.zeros_like(one.expand(GIB)),
        "broadcast": lambda: row[:, None] + row,
        "clone": lambda: one.expand(GIB).clone(),
        "repeat": lambda: one.repeat(GIB),
        "matmul": lambda: tall @ tall.T,
        "to the GPU": lambda: host.expand(2**15, 2**15).cuda(),
        "pad": lambda: torch.nn.functional.pad(one, (0, GIB)),
        "interpolate": lambda: torch.nn.functional.interpolate(image, size=(2**15, 2**15)),
        "rows": lambda: torch.nn.functional.embedding(first, wide),
        "softmax": lambda: one.expand(2**15, 2**15).softmax(-1),
    }
    for name, call in calls.items():
        before = peak()
        try:
            call()
            print(name, "made it")
        except torch.OutOfMemoryError as error:
            assert "CUDA out of memory. Tried to allocate" in str(error), error
        if peak() - before > GIB // 2:
            print(name, peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells the peak")
def test_host_memory_is_not_filled_first() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout) == (0, ""), run.stderr


def failing(make: Callable[[], torch.Tensor]) -> tuple[str, dict[str, int], int]:
    """The message, the counters and the random numbers after a request that fails."""
    with simulate("1GiB") as machine:
        kept = torch.ones(2**20, device="cuda")
        with pytest.raises(torch.OutOfMemoryError) as caught:
            make()
        assert machine.gpus[0].failure is not None
        offset = machine.generators[0].get_offset()
        del kept
        stats = torch.cuda.memory_stats()
        return str(caught.value), stats, offset


def test_the_error_and_the_counters_are_those_of_the_same_request() -> None:
    empty = failing(lambda: torch.empty(2**29, device="cuda"))
    assert failing(lambda: torch.zeros(2**29, device="cuda")) == empty
    assert failing(lambda: torch.rand(2**29, device="cuda")) == empty
    assert failing(lambda: torch.ones(1, device="cuda").expand(2**29).clone())[0] != empty[0]
    assert empty[0].startswith("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total")
    assert (empty[1]["num_ooms"], empty[1]["num_alloc_retries"], empty[2]) == (1, 1, 0)


@pytest.mark.parametrize("compute", [True, False])
@pytest.mark.parametrize("make", [torch.empty, torch.zeros])
def test_more_than_a_process_can_address_is_an_error_of_the_gpu(
    make: Callable[..., torch.Tensor], compute: bool
) -> None:
    with simulate("1GiB", compute=compute):
        for nbytes, text in ((2**59, "536870912.00 GiB. GPU 0"), (2**62, "more than 1EB memory")):
            with pytest.raises(torch.OutOfMemoryError, match=f"Tried to allocate {text}"):
                make(nbytes, dtype=torch.int8, device="cuda")


def test_what_fits_beside_cached_memory_is_made() -> None:
    with simulate("1GiB"):
        blocks = [torch.empty(2**28, dtype=torch.uint8, device="cuda") for _ in range(3)]
        del blocks
        made = torch.zeros(2**29 + 2**28, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_allocated() == made.nbytes
        assert not made.any()


def test_a_share_of_the_gpu_is_the_limit() -> None:
    with simulate("1GiB"):
        torch.cuda.set_per_process_memory_fraction(0.25)
        with pytest.raises(torch.OutOfMemoryError, match=r"256\.00 MiB allowed"):
            torch.zeros(2**27, device="cuda")
        assert torch.zeros(2**25, device="cuda").nbytes == 2**27


def test_a_wrong_call_gets_its_own_error() -> None:
    with simulate("1GiB"):
        one, other = (torch.ones(2**15, size, device="cuda") for size in (3, 4))
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            one @ other
