"""Replays of a card that runs full: errors, retries, and segments that expand and shrink."""

from __future__ import annotations

import random

import pytest

from pytorch_memlab.simulation import replay
from pytorch_memlab.simulation.allocator.caching_allocator import CachingAllocator
from pytorch_memlab.simulation.allocator.driver import SimulatedDriver
from pytorch_memlab.simulation.allocator.out_of_memory import DeviceOutOfMemoryError
from pytorch_memlab.simulation.allocator.settings import AllocatorSettings

MB = 2**20
BASE = 0x7000_0000_0000
LINK = (
    "If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
    "See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/"
    "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)


class RecordingDriver(SimulatedDriver):
    """A full card whose driver writes down what it gives and takes."""

    process_memory = None

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self.events: list[list] = []

    def malloc(self, size):
        address = super().malloc(size)
        if address is not None:
            self.events.append(["segment_alloc", address, size, 0])
        return address

    def free(self, address):
        self.events.append(["segment_free", address, self._sizes[address], 0])
        super().free(address)

    def map(self, address, size):
        mapped = super().map(address, size)
        if mapped:
            self.events.append(["segment_map", address, size, 0])
        return mapped

    def unmap(self, address, size):
        self.events.append(["segment_unmap", address, size, 0])
        super().unmap(address, size)


def recorded(conf, total, seed, steps=400):
    """The trace of a random program on a small card, and the text of each of its errors."""
    choose = random.Random(seed)
    driver = RecordingDriver(total)
    allocator = CachingAllocator(driver, AllocatorSettings.parse(conf), order_by_address=True)
    events, living, texts = driver.events, {}, []

    def allocate(size):
        try:
            address = allocator.malloc(size)
        except DeviceOutOfMemoryError as error:
            events.append(["oom", driver.free_memory(), size, 0])
            texts.append((len(events) - 1, str(error)))
        else:
            living[address] = size
            events.append(["alloc", address, size, 0, {}])

    def free(address):
        allocator.free(address)
        events.append(["free", address, living.pop(address), 0])

    allocate(512)
    allocate(2 * MB)
    for _ in range(steps):
        choice = choose.random()
        if choice < 0.01:
            allocator.empty_cache()
        elif choice < 0.45 and living:
            free(choose.choice(list(living)))
        else:
            allocate(choose.choice([choose.randint(1, MB), choose.randint(1, 60 * MB)]))
    final = [
        {
            "address": one["address"],
            "size": one["total_size"],
            "stream": 0,
            "pool": one["segment_type"],
            "blocks": [
                [block["address"], block["size"], int(block["state"] == "active_allocated")]
                for block in one["blocks"]
            ],
        }
        for one in allocator.snapshot()
    ]
    settings = {"PYTORCH_CUDA_ALLOC_CONF": conf}
    trace = {"settings": settings, "initial": [], "events": events, "final": final}
    return {**trace, "total_memory": total}, texts


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
@pytest.mark.parametrize("seed", range(7))
def test_a_full_card_replays_with_its_errors(conf, seed):
    trace, texts = recorded(conf, 300 * MB, seed)
    result = replay(trace)
    assert result.mismatches == []
    assert result.final_matches
    assert len(texts) >= 5
    assert [(one.index, one.message) for one in result.out_of_memory] == texts
    releases = {"segment_free", "segment_unmap"}
    assert any(event[0] in releases for event in trace["events"])


@pytest.fixture
def full():
    """A card of 100 MiB of which 40 MiB are allocated and 20 MiB cached; 50 MiB do not fit."""
    return {
        "settings": {"PYTORCH_CUDA_ALLOC_CONF": ""},
        "initial": [],
        "events": [
            ["segment_alloc", BASE, 40 * MB, 0],
            ["alloc", BASE, 40 * MB, 0, {}],
            ["segment_alloc", BASE + 40 * MB, 20 * MB, 0],
            ["alloc", BASE + 40 * MB, 5 * MB, 0, {}],
            ["oom", 30 * MB, 50 * MB, 0],
        ],
        "final": [
            {
                "address": BASE,
                "size": 40 * MB,
                "stream": 0,
                "pool": "large",
                "blocks": [[BASE, 40 * MB, 1]],
            },
            {
                "address": BASE + 40 * MB,
                "size": 20 * MB,
                "stream": 0,
                "pool": "large",
                "blocks": [[BASE + 40 * MB, 5 * MB, 1], [BASE + 45 * MB, 15 * MB, 0]],
            },
        ],
    }


@pytest.mark.parametrize("total", [100, None])
def test_the_text_of_an_error_is_torchs(full, total):
    if total is not None:
        full["total_memory"] = total * MB
    result = replay(full)
    assert (result.mismatches, result.final_matches) == ([], True)
    [error] = result.out_of_memory
    assert error.index == 4
    assert error.message == (
        "CUDA out of memory. Tried to allocate 50.00 MiB. "
        f"GPU 0 has a total capacity of {total or 90}.00 MiB of which 30.00 MiB is free. "
        "Of the allocated memory 45.00 MiB is allocated by PyTorch, "
        f"and 15.00 MiB is reserved by PyTorch but unallocated. {LINK}"
    )


def test_a_request_that_only_the_recording_refuses_is_told(full):
    full["events"][4] = ["oom", 30 * MB, 15 * MB, 0]
    [mismatch] = replay(full).mismatches
    assert (mismatch.index, mismatch.message) == (
        4, f"{15 * MB} bytes at {BASE + 45 * MB:#x}, recorded as out of memory"
    )  # fmt: skip


EXPANDING = [
    ["segment_map", BASE, 20 * MB, 0],
    ["alloc", BASE, 20 * MB, 0, {}],
    ["free", BASE, 20 * MB, 0],
    ["segment_unmap", BASE, 20 * MB, 0],
]


@pytest.mark.parametrize(
    ("position", "event", "expected"),
    [
        (
            0,
            ["segment_map", BASE, 40 * MB, 0],
            [(1, f"{20 * MB} bytes mapped at {BASE:#x}, recorded {40 * MB} at {BASE:#x}")],
        ),
        (
            3,
            ["segment_unmap", BASE, 40 * MB, 0],
            [(3, f"{20 * MB} bytes unmapped at {BASE:#x}, recorded {40 * MB}")],
        ),
        (
            3,
            ["segment_unmap", BASE + MB, 20 * MB, 0],
            [
                (3, f"the range at {BASE + MB:#x} is not free"),
                (3, f"the range at {BASE:#x} is free, recorded as kept"),
            ],
        ),
        (
            3,
            ["segment_map", BASE + 20 * MB, 20 * MB, 0],
            [(3, f"no range of {20 * MB} bytes was needed at {BASE + 20 * MB:#x}")],
        ),
    ],
)
def test_pages_that_differ_are_told(position, event, expected):
    events = [*EXPANDING[:position], event, *EXPANDING[position + 1 :]]
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    trace = {"settings": settings, "initial": [], "events": events, "final": []}
    assert [(one.index, one.message) for one in replay(trace).mismatches] == expected
