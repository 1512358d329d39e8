"""The line in which the program first uses a GPU: its peak is right whatever else it does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from support.blind import blind

from pytorch_memlab import LineProfiler, PeakScope, simulate
from pytorch_memlab.devices import program_view

MIB = 2**20
NAMES = (
    "_cuda_memoryStats",
    "_cuda_resetPeakMemoryStats",
    "_accelerator_getDeviceStats",
    "_accelerator_resetPeakStats",
)


@pytest.fixture(params=["simulated", "taken for real"])
def gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    hidden = blind() if request.param == "taken for real" else nullcontext()
    with hidden, simulate("24GiB", count=3) as machine, monkeypatch.context() as patch:
        if request.param == "taken for real":
            from pytorch_memlab.devices import cuda

            patch.setattr(cuda, "is_used", lambda index: machine.known_gpus[index].in_use())
        before = [getattr(torch._C, name, None) for name in NAMES]
        yield
        for index in range(3):
            torch.cuda.reset_peak_memory_stats(index)
        assert program_view._views == {}
        assert [getattr(torch._C, name, None) for name in NAMES] == before


def use(mib: int, device: int = 0) -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device=f"cuda:{device}")


def load(mib: int, device: int = 0, reset: Any = torch.cuda.reset_peak_memory_stats) -> None:
    """Allocates, frees, and resets the peak."""
    use(mib, device)
    reset(device)


def peaks(profiler: LineProfiler, device: str = "cuda:0", func: Any = None) -> list[int]:
    """Peak of each line after the ``def``."""
    tables = profiler.display(func, columns="allocated_bytes.all.peak").report.tables
    (rows,) = (table.rows for table in tables if table.device.name == device)
    return [int(values[0] or 0) for values in list(rows.values())[1:]]


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
def test_a_reset_in_the_line_of_the_first_use_takes_no_peak(is_warm: bool) -> None:
    seen = []

    def main(device: int) -> None:
        load(100, device)
        load(100, device)
        seen.append(torch.cuda.max_memory_allocated(device))
        kept = use(8, device)
        load(60, device)
        use(30, device)
        seen.append(torch.cuda.max_memory_allocated(device))
        del kept

    main(2)
    alone = seen.copy()
    seen.clear()
    if is_warm:
        use(1)
        torch.cuda.reset_peak_memory_stats()
    with LineProfiler(main) as profiler:
        main(0)
    assert seen == alone == [0, 38 * MIB]
    assert peaks(profiler) == [mib * MIB for mib in (100, 100, 0, 8, 68, 38, 8, 8)]


@pytest.mark.usefixtures("gpus")
def test_the_highest_of_several_resets_counts_on_each_device() -> None:
    seen = []

    def many(device: int) -> None:
        for mib in (3, 9, 5):
            load(mib, device)
        use(2, device)
        seen.append(torch.cuda.max_memory_allocated(device))

    def main() -> None:
        many(1)
        many(2)

    with LineProfiler(main) as profiler:
        main()
    assert seen == [2 * MIB, 2 * MIB]
    assert peaks(profiler, "cuda:1") == [9 * MIB, 0]
    assert peaks(profiler, "cuda:2")[-1] == 9 * MIB


@pytest.mark.usefixtures("gpus")
@pytest.mark.skipif(
    not hasattr(getattr(torch, "accelerator", None), "reset_peak_memory_stats"),
    reason="torch has no such call",
)
@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
def test_the_calls_of_torch_accelerator_count_as_those_of_cuda(is_warm: bool) -> None:
    seen = []

    def main() -> None:
        load(100, reset=torch.accelerator.reset_peak_memory_stats)
        load(50, reset=torch.accelerator.reset_peak_memory_stats)
        use(7)
        seen.append(torch.accelerator.max_memory_allocated())

    if is_warm:
        use(1)
    with LineProfiler(main) as profiler:
        main()
    assert seen == [7 * MIB]
    assert peaks(profiler) == [100 * MIB, 50 * MIB, 7 * MIB, 0]


@pytest.mark.usefixtures("gpus")
def test_windows_that_were_closed_in_the_line_of_the_first_use_take_no_peak() -> None:
    def inner() -> None:
        load(100)
        use(1)

    def outer() -> None:
        inner()
        torch.cuda.empty_cache()

    with LineProfiler(inner, outer) as profiler:
        outer()
    assert peaks(profiler, func=outer) == [100 * MIB, 0]

    def with_scope() -> None:
        use(20, 1)
        with PeakScope(1) as scope:
            load(30, 1)
            load(10, 1)
        assert scope.peak == 30 * MIB
        assert torch.cuda.max_memory_allocated(1) == 0

    def main() -> None:
        with_scope()

    with LineProfiler(main) as profiler:
        main()
    assert peaks(profiler, "cuda:1") == [30 * MIB]


@pytest.mark.usefixtures("gpus")
def test_a_use_while_nothing_is_profiled_is_of_no_line() -> None:
    def main() -> None:
        size = 1
        del size

    with LineProfiler(main) as profiler:
        main()
    load(100)
    profiler.clear()
    profiler.add_function(main)
    with profiler:
        main()
    assert not any(peaks(profiler))


def test_torch_is_as_before_when_a_profiler_outlives_its_simulation() -> None:
    before = [getattr(torch._C, name, None) for name in NAMES]

    def main() -> None:
        load(100)
        load(50)

    profiler = LineProfiler(main)
    with profiler:
        for _ in range(2):
            with simulate("24GiB", count=2):
                main()
    assert [getattr(torch._C, name, None) for name in NAMES] == before
    assert program_view._views == {}
    assert program_view._originals == {}
    assert peaks(profiler) == [100 * MIB, 50 * MIB]
