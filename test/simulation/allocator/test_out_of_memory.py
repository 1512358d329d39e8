"""Running out of memory on a simulated GPU: when, with which words, and what comes after it."""

from __future__ import annotations

import gc
import inspect
import traceback
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab.cli.main import main
from pytorch_memlab.errors import AllocatorSettingsError, UsageError
from pytorch_memlab.simulation.hardware.presets import PRESETS

MIB, GIB = 2**20, 2**30

_IS_DEPRECATED = "deprecated" in inspect.getsource(torch.cuda.memory._set_allocator_settings)

ADVICE = (
    "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF="
    "expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  "
    "(https://docs.pytorch.org/docs/stable/notes/cuda.html"
    "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)


def take(mib: int, device: str = "cuda") -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device=device)


def message(mib: int, device: str = "cuda") -> str:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        take(mib, device)
    return str(caught.value)


def stats(*names: str, device: int = 0) -> tuple[int, ...]:
    found = torch.cuda.memory_stats(device)
    return tuple(found[name] for name in names)


# What the allocator does not get


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({}, 0),
        ({"context": "450MiB"}, 450 * MIB),
        ({"others": "2GiB"}, 2 * GIB),
        ({"context": 450 * MIB, "others": 2 * GIB}, 450 * MIB + 2 * GIB),
        ({"context": 0, "others": "1GB"}, 10**9),
    ],
)
def test_context_and_others_are_not_free(options: dict[str, Any], missing: int) -> None:
    with simulate("24GiB", count=2, **options):
        for device in (0, 1):
            assert torch.cuda.mem_get_info(device) == (24 * GIB - missing, 24 * GIB)
        assert torch.cuda.get_device_properties(0).total_memory == 24 * GIB
        assert torch.cuda.memory_reserved() == 0
        kept = take(100)
        assert torch.cuda.mem_get_info() == (24 * GIB - missing - 100 * MIB, 24 * GIB)
        del kept


@pytest.mark.parametrize("name", PRESETS)
def test_a_named_gpu_has_an_estimate_of_its_context(name: str) -> None:
    gpu = PRESETS[name]
    with simulate(name):
        free, total = torch.cuda.mem_get_info()
        assert total - free == gpu.context > 0
    with simulate(name, context=0):
        assert torch.cuda.mem_get_info() == (gpu.total_memory, gpu.total_memory)


def test_the_last_byte_is_the_capacity_less_what_is_taken() -> None:
    with simulate("1GiB", context="200MiB", others="300MiB", compute=False):
        kept = take(524)
        assert torch.cuda.mem_get_info()[0] == 0
        del kept
        torch.cuda.empty_cache()
        assert message(525) == (
            "CUDA out of memory. Tried to allocate 526.00 MiB. GPU 0 has a total capacity of "
            "1024.00 MiB of which 524.00 MiB is free. Process 4194304 has 300.00 MiB memory in "
            "use. Including non-PyTorch memory, this process has 200.00 MiB memory in use. Of the "
            "allocated memory 0 bytes is allocated by PyTorch, and 0 bytes is reserved by PyTorch "
            "but unallocated. " + ADVICE
        )


def test_an_estimate_is_called_one_beside_the_error_and_not_in_it() -> None:
    def error_of(gpu: str, **options: Any) -> torch.OutOfMemoryError:
        with (
            simulate(gpu, compute=False, **options),
            pytest.raises(torch.OutOfMemoryError) as caught,
        ):
            take(16000)
        return caught.value

    error = error_of("t4")
    assert str(error) == (
        "CUDA out of memory. Tried to allocate 15.62 GiB. GPU 0 has a total capacity of 14.76 GiB "
        "of which 14.62 GiB is free. Including non-PyTorch memory, this process has 135.00 MiB "
        "memory in use. Of the allocated memory 0 bytes is allocated by PyTorch, and 0 bytes is "
        "reserved by PyTorch but unallocated. " + ADVICE
    )
    assert error.__notes__ == [
        (
            "Tesla T4 is simulated: 135.00 MiB are assumed for the CUDA context (an estimate); "
            "pass simulate(..., context=...) or --cuda-context to change it"
        )
    ]
    if hasattr(error, "add_note"):
        assert error.__notes__[0] in "".join(traceback.format_exception(error))
    assert not hasattr(error_of("t4", context="135MiB"), "__notes__")
    assert not hasattr(error_of("14GiB"), "__notes__")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"context": "much"}, "context is a size such as '450MiB', or bytes, not 'much'"),
        ({"others": "-1GiB"}, "others is a size such as '450MiB', or bytes, not '-1GiB'"),
        ({"others": -1}, "others is a size such as '450MiB', or bytes, not -1"),
        ({"others": True}, "others is a size such as '450MiB', or bytes, not True"),
        ({"context": 0.5}, "context is a size such as '450MiB', or bytes, not 0.5"),
        (
            {"others": "24GiB"},
            (
                "nothing is left of the GPU's 24.00 GiB: its context takes 0 bytes, other "
                "processes 24.00 GiB"
            ),
        ),
    ],
)
def test_what_cannot_be_taken_gets_one_line(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        simulate("24GiB", **options)
    assert str(caught.value) == problem


def test_a_decorated_function_has_them_too() -> None:
    @simulate("24GiB", context="1GiB", others="2GiB")
    def free() -> int:
        return torch.cuda.mem_get_info()[0]

    assert [free(), free()] == [21 * GIB] * 2


def test_the_command_takes_them(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch\nprint(torch.cuda.mem_get_info()[0] >> 20)\n")
    options = ["--context", "300MiB", "--others", "1GiB"]
    assert main(["run", "--gpu", "4GiB", *options, str(script)]) == 0
    assert main(["run", "--gpu", "t4", str(script)]) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if line.isdigit()]
    assert printed == [str(4096 - 300 - 1024), str(PRESETS["t4"].total_memory // MIB - 135)]
    assert main(["run", "--context", "3 sheep", str(script)]) == 2
    assert capsys.readouterr().err == (
        "pytorch-memlab run: error: --cuda-context is a size such as '450MiB', or bytes, not"
        " '3 sheep'\n"
    )


# The share of the process


def test_the_memory_fraction_is_of_one_device_and_named_in_the_message() -> None:
    with simulate("1GiB", count=2, context="100MiB"):
        torch.cuda.set_per_process_memory_fraction(0.25, 1)
        assert torch.cuda.get_per_process_memory_fraction(0) == 1.0
        assert torch.cuda.get_per_process_memory_fraction(1) == 0.25
        kept = [take(200, "cuda:1"), take(300, "cuda:0")]
        assert message(57, "cuda:1") == (
            "CUDA out of memory. Tried to allocate 58.00 MiB. GPU 1 has a total capacity of "
            "1024.00 MiB of which 724.00 MiB is free. Including non-PyTorch memory, this process "
            "has 300.00 MiB memory in use. 256.00 MiB allowed; Of the allocated memory 200.00 MiB "
            "is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated. " + ADVICE
        )
        kept.append(take(56, "cuda:1"))
        torch.cuda.set_per_process_memory_fraction(1.0, 1)
        kept.append(take(57, "cuda:1"))
        assert stats("num_ooms", "num_alloc_retries", device=1) == (1, 1)
        with pytest.raises(ValueError, match=r"Invalid fraction value: 1\.5. Allowed range: 0~1"):
            torch.cuda.set_per_process_memory_fraction(1.5)
        kept.clear()


def test_what_is_cached_counts_against_the_share_until_it_is_given_back() -> None:
    with simulate("1GiB"):
        torch.cuda.set_per_process_memory_fraction(0.25)
        cached = take(200)
        del cached
        names = ("num_alloc_retries", "num_ooms", "num_device_free", "segment.all.current")
        before = stats("reserved_bytes.all.current", *names)
        assert before == (200 * MIB, 0, 0, 0, 1)
        kept = take(210)
        assert stats("reserved_bytes.all.current", *names) == (210 * MIB, 1, 0, 1, 1)
        assert message(60).startswith("CUDA out of memory. Tried to allocate 60.00 MiB.")
        assert stats("reserved_bytes.all.current", *names) == (210 * MIB, 2, 1, 1, 1)
        del kept


# In which order room is made


def conf(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", text)


def test_garbage_is_collected_before_the_card_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    conf(monkeypatch, "garbage_collection_threshold:0.5")
    with simulate("1GiB"):
        torch.cuda.set_per_process_memory_fraction(0.5)
        old, young = take(100), take(200)
        del old
        names = ("reserved_bytes.all.current", "num_alloc_retries", "num_device_free", "num_ooms")
        kept = take(120)  # 300 MiB are more than half of 512: the old 100 go, though 512 would do
        assert stats(*names) == (320 * MIB, 0, 1, 0)
        assert message(200) == (
            "CUDA out of memory. Tried to allocate 200.00 MiB. GPU 0 has a total capacity of "
            "1024.00 MiB of which 704.00 MiB is free. Including non-PyTorch memory, this process "
            "has 320.00 MiB memory in use. 512.00 MiB allowed; Of the allocated memory 320.00 MiB "
            "is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated. " + ADVICE
        )
        assert stats(*names) == (320 * MIB, 1, 1, 1)
        del young, kept


def test_oversize_segments_go_before_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    conf(monkeypatch, "max_split_size_mb:100")
    with simulate("1GiB"):
        small, large, larger = take(60), take(300), take(400)
        del small, large, larger
        names = ("num_alloc_retries", "num_device_free", "segment.all.current")
        assert stats(*names, "oversize_segments.current") == (0, 0, 3, 2)
        kept = take(500)  # 264 MiB are free; one segment of 100 MiB or more would do, none does
        assert stats(*names, "oversize_segments.current") == (0, 2, 2, 1)
        assert stats("reserved_bytes.all.current") == (560 * MIB,)
        # Nothing oversize is cached any more: all that is cached goes, and only that is a retry.
        more = take(510)
        assert stats(*names, "oversize_segments.current") == (1, 3, 2, 2)
        assert message(20).startswith(
            "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of "
            "1024.00 MiB of which 14.00 MiB is free. Including non-PyTorch memory, this process "
            "has 1010.00 MiB memory in use. Of the allocated memory 1010.00 MiB is allocated"
        )
        assert stats(*names, "num_ooms") == (2, 3, 2, 1)
        del kept, more


def test_all_that_is_cached_goes_last_and_counts_as_a_retry() -> None:
    with simulate("1GiB"):
        kept = take(300)
        cached = [take(200), take(200), take(1)]
        cached.clear()
        names = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_free")
        assert stats(*names, "segment.all.current") == (0, 0, 0, 0, 4)
        more = take(700)
        assert stats(*names, "segment.all.current") == (1, 0, 1, 3, 2)
        assert message(25) == (
            "CUDA out of memory. Tried to allocate 26.00 MiB. GPU 0 has a total capacity of "
            "1024.00 MiB of which 24.00 MiB is free. Including non-PyTorch memory, this process "
            "has 1000.00 MiB memory in use. Of the allocated memory 1000.00 MiB is allocated by "
            "PyTorch, and 0 bytes is reserved by PyTorch but unallocated. " + ADVICE
        )
        assert stats(*names) == (2, 1, 2, 3)
        assert torch.cuda.memory_stats()["active_bytes.all.peak"] == 1000 * MIB
        del kept, more


def test_a_request_above_the_share_can_be_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    conf(monkeypatch, "throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5")
    with simulate("1GiB"):
        cached = take(400)
        del cached
        assert message(450) == (
            "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
            "per_process_memory_fraction limit. Requested size: 450.00 MiB"
        )
        names = ("num_oom_rejections", "num_ooms", "num_alloc_retries", "num_device_free")
        assert stats(*names) == (1, 0, 0, 0)
        assert torch.cuda.memory_reserved() == 400 * MIB


# The program goes on

ROW = 4 * MIB
"""Floats of a sample: 16 MiB, so that any number of samples is a segment of just their size."""


def step(batch: int) -> None:
    x = torch.zeros(batch, ROW, device="cuda", requires_grad=True)
    y = x * 2
    z = y.exp()
    z.sum().backward()


def largest_batch(free_mib: int) -> int:
    """x, y and z, and the gradients of y and x, 16 MiB a sample each; a segment for the sum."""
    return (free_mib - 2) // (5 * 16)


def find_batch_size(attempt: Any) -> tuple[int, list[int]]:
    """Double until it fails, then bisect, as people write it."""
    failed: list[int] = []

    def fits(batch: int) -> bool:
        try:
            attempt(batch)
        except torch.OutOfMemoryError:
            failed.append(batch)
        gc.collect()
        torch.cuda.empty_cache()
        return not failed or failed[-1] != batch

    low = 0
    high = 1
    while fits(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low, failed


@pytest.mark.parametrize(
    ("gpu", "context", "compute"),
    [("400MiB", 0, True), ("1GiB", 100, False), ("80GiB", 777, False), ("322MiB", 0, False)],
)
def test_a_batch_size_finder_finds_what_arithmetic_gives(
    gpu: str, context: int, compute: bool
) -> None:
    with simulate(gpu, context=context * MIB, compute=compute):
        free = torch.cuda.mem_get_info()[0] // MIB
        found, failed = find_batch_size(step)
        assert found == largest_batch(free)
        assert min(failed) == found + 1
        assert stats("num_ooms", "num_alloc_retries") == (len(failed), len(failed))
        assert torch.cuda.memory_allocated() == torch.cuda.memory_reserved() == 0


def test_the_finder_per_line() -> None:
    with simulate("1GiB", context="100MiB", compute=False), LineProfiler(step) as profiler:
        found, failed = find_batch_size(step)
    assert (found, failed) == (11, [16, 12])
    [table] = profiler.display(None, ["active_bytes.all.peak", "hits", "delta"]).report.tables
    rows = [table.rows[line] for line in sorted(table.rows)]
    # Batch 16 fails for the gradient of y, with 768 MiB of x, y and z there, of 922. The highest
    # peak of the last line is that of batch 11: five times 176 MiB, the sum and its gradient. It
    # leaves the gradient of x where it fits. Where not, frames of torch hold the sum and its
    # gradient while the error exists, as on CUDA; batch 12's gradient of y is gone.
    tried = (1, 2, 4, 8, 16, 12, 10, 11)
    made = sum(tried) * 16 * MIB // 8
    assert rows == [
        (0, 8, 0),
        (256 * MIB, 8, made),
        (512 * MIB, 8, made),
        (768 * MIB, 8, made),
        (880 * MIB + 1024, 8, made + (2 * 1024 - (16 + 12) * 16 * MIB) // 8),
    ]


@pytest.mark.parametrize(
    ("gpu", "batch", "failing", "peaks"),
    [
        # weight 16 MiB, product 16 MiB a sample
        ("114MiB", 7, "loss = ", [16, 16, 16]),
        # and its gradient in its place; that of the weight is too much
        ("114MiB", 6, "loss.backward()", [16, 16, 112, 112]),
        # the first state takes the product's place; the second is too much
        ("60MiB", 1, "optimizer.step()", [16, 16, 32, 48, 48]),
    ],
)
def test_an_error_leaves_nothing_behind(
    gpu: str, batch: int, failing: str, peaks: list[int]
) -> None:
    def train() -> None:
        optimizer.zero_grad()
        loss = (weight.expand(batch, ROW) * 2).sum()
        loss.backward()
        optimizer.step()

    with simulate(gpu, compute=False), LineProfiler(train) as profiler:
        weight = torch.nn.Parameter(torch.zeros(ROW, device="cuda"))
        optimizer = torch.optim.Adam([weight], foreach=False)
        base = stats("active_bytes.all.current", "active.all.current")
        for _ in range(2):
            # Without the garbage collector: nothing of ours holds what was there.
            gc.collect()
            gc.disable()
            try:
                train()
            except torch.OutOfMemoryError as error:
                frames = traceback.extract_tb(error.__traceback__)
                [line] = [frame.line for frame in frames if frame.name == "train"]
                assert line is not None
                assert line.startswith(failing)
            finally:
                gc.enable()
            optimizer.zero_grad()
            optimizer.state.clear()
            assert stats("active_bytes.all.current", "active.all.current") == base
            torch.cuda.empty_cache()
            assert torch.cuda.memory_reserved() == 16 * MIB
        assert stats("num_ooms") == (2,)
    [table] = profiler.display(None, ["active_bytes.all.peak", "hits"]).report.tables
    rows = [table.rows[line] for line in sorted(table.rows)]
    assert [(peak // MIB, hits) for peak, hits in rows if hits] == [(peak, 2) for peak in peaks]


def test_an_error_holds_what_the_programs_frames_hold_and_no_more() -> None:
    def work() -> None:
        held = take(20)
        (take(40) + 1).add(take(1000))
        del held

    with simulate("200MiB", compute=False):
        kept = None
        gc.disable()
        try:
            work()
        except torch.OutOfMemoryError as error:
            # The frame's variable; what was on its stack is gone, though our frames worked on it.
            assert torch.cuda.memory_allocated() == 20 * MIB
            kept = error
        finally:
            gc.enable()
        assert torch.cuda.memory_allocated() == 20 * MIB
        traceback.clear_frames(kept.__traceback__)
        assert torch.cuda.memory_allocated() == 0


def test_an_op_that_fails_in_its_midst_keeps_nothing() -> None:
    with simulate("100MiB", compute=False):
        x = take(30)
        gc.disable()
        try:
            torch.sort(x)
        except torch.OutOfMemoryError:
            assert torch.cuda.memory_allocated() == 30 * MIB
        finally:
            gc.enable()
        assert stats("num_ooms") == (1,)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # It empties the cache while it handles the error, whose traceback holds x and y. Segments
        # of 64 and 57 samples stay for good: 22 fit twice in each, and a fifth time nowhere.
        ("", 19),
        ("expandable_segments:True", 22),
    ],
)
def test_accelerates_finder(monkeypatch: pytest.MonkeyPatch, settings: str, expected: int) -> None:
    memory = pytest.importorskip("accelerate.utils.memory", reason="accelerate is not installed")
    conf(monkeypatch, settings)
    tried: list[int] = []

    @memory.find_executable_batch_size(starting_batch_size=64)
    def train(batch_size: int) -> int:
        tried.append(batch_size)
        step(batch_size)
        return batch_size

    with simulate("2GiB", context="100MiB", compute=False):
        assert largest_batch(1948) == 24
        assert train() == expected
        assert tried == [64, 57, 51, 45, 40, 36, 32, 28, 25, 22, 19][: len(tried)]
        assert stats("num_ooms") == (len(tried) - 1,)
        assert torch.cuda.memory_allocated() == 0


# Settings


@pytest.mark.parametrize(
    ("variables", "expandable"),
    [
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, True),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, True),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "", "PYTORCH_ALLOC_CONF": "expandable_segments:True"},
            False,
        ),
        (
            {
                "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False",
                "PYTORCH_ALLOC_CONF": "expandable_segments:True",
            },
            False,
        ),
    ],
)
def test_the_older_variable_wins_even_if_it_is_empty(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], *, expandable: bool
) -> None:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with simulate("1GiB", compute=False):
        kept = take(30)
        reserved, segments = stats("reserved_bytes.all.current", "segment.all.current")
        assert (reserved, segments) == ((40 * MIB, 0) if expandable else (30 * MIB, 1))
        del kept


def test_expandable_segments_run_out_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    conf(monkeypatch, "expandable_segments:True")
    with simulate("1GiB", context="24MiB", compute=False):
        kept = [take(490), take(300)]
        del kept[0]
        assert torch.cuda.memory_reserved() == 800 * MIB
        # 200 MiB of the card are left. 24 pages of 20 MiB lie wholly in the 490 that are free: they
        # go to a second segment, as the first has 58 pages of addresses, an eighth more than the
        # card, of which 40 are behind its blocks.
        kept.append(take(630))
        assert torch.cuda.memory_reserved() == (800 - 480 + 640) * MIB
        assert stats("num_alloc_retries", "segment.all.current") == (1, 0)
        assert message(100) == (
            "CUDA out of memory. Tried to allocate 100.00 MiB. GPU 0 has a total capacity of "
            "1024.00 MiB of which 40.00 MiB is free. Including non-PyTorch memory, this process "
            "has 984.00 MiB memory in use. Of the allocated memory 930.00 MiB is allocated by "
            "PyTorch, and 30.00 MiB is reserved by PyTorch but unallocated. " + ADVICE
        )
        kept.clear()


def test_settings_change_while_a_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    conf(monkeypatch, "max_split_size_mb:40,roundup_power2_divisions:4")
    with simulate("1GiB", count=2, compute=False):
        names = ("reserved_bytes.all.current", "segment.all.current", "allocated_bytes.all.current")
        kept = [take(33)]
        assert stats(*names) == (40 * MIB, 1, 40 * MIB)
        assert stats("max_split_size") == (40 * MIB,)
        set_settings = torch._C._accelerator_setAllocatorSettings
        set_settings("expandable_segments:True")
        kept.append(take(33))  # rounding is off again: 33 MiB, in two pages
        assert stats(*names) == (80 * MIB, 1, 73 * MIB)
        kept.append(take(33, "cuda:1"))
        assert stats(*names, device=1) == (40 * MIB, 0, 33 * MIB)
        set_settings("garbage_collection_threshold:0.9")
        kept.append(take(7))  # in the 7 MiB that are free behind the second
        assert stats(*names) == (80 * MIB, 1, 80 * MIB)
        set_settings("expandable_segments:False")
        del kept[1]
        kept.append(take(33))  # not in what has become free of the expandable segment
        assert stats(*names) == (114 * MIB, 2, 81 * MIB)
        assert stats("max_split_size") == (40 * MIB,)
        assert torch._C._accelerator_getAllocatorSettings() == "expandable_segments:False"
        with pytest.raises(AllocatorSettingsError, match="did you mean expandable_segments"):
            set_settings("expandable_segment:True")
        with pytest.raises(ValueError, match="expandable_segments must be True or False"):
            set_settings("expandable_segments:yes")
        with pytest.warns(FutureWarning) if _IS_DEPRECATED else nullcontext():
            torch.cuda.memory._set_allocator_settings("max_split_size_mb:64")
        assert torch._C._accelerator_getAllocatorSettings() == "max_split_size_mb:64"
        kept.clear()


def test_a_wrong_setting_is_refused_when_the_simulation_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conf(monkeypatch, "max_split_size_mb:3")
    with pytest.raises(ValueError, match="max_split_size_mb must be 20 or more, not 3"):
        simulate("1GiB").__enter__()
    assert not torch.cuda.is_available()
