"""Each kind of run says whether the program had enough memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytorch_memlab.profiles.device_verdicts import verdicts
from pytorch_memlab.profiles.recorded import MeasuredDevice, RecordedProfile, Run
from pytorch_memlab.records import (
    Approximation,
    ApproximationKind,
    DeviceInfo,
    FunctionInfo,
    LineEntry,
)
from pytorch_memlab.render.run_notes import sentences

GIB = 1 << 30
RUN = Run("train.py", (), {}, "", 1.0, is_dry_run=False, exit_status=0)
FAILED = replace(RUN, exit_status=1, exception="torch.OutOfMemoryError: CUDA out of memory.")
BROKEN = replace(RUN, exit_status=1, exception="ZeroDivisionError: division by zero")


def gpu(index: int, **fields: Any) -> MeasuredDevice:
    sizes: dict[str, Any] = {"capacity": 24 * GIB, "taken": GIB, "context": GIB}
    info = DeviceInfo(f"cuda:{index}", "a GPU", simulated=True)
    sizes |= {"peak_active": 16 * GIB, "peak_allocated": 16 * GIB, "peak_reserved": 18 * GIB}
    return MeasuredDevice(info, **{**sizes, **fields})


def uncounted(at_most: int | None, needed: int | None, reserved: int = 18) -> MeasuredDevice:
    return gpu(
        0,
        is_lower_bound=True,
        peak_reserved=reserved * GIB,
        uncounted_at_most=at_most,
        needed_at_most=needed,
    )


def told(devices: list[MeasuredDevice], run: Run = RUN, **stats: dict[str, int]) -> list[str]:
    """The verdict on devices, of which some have statistics or a gap."""
    approximation = Approximation(
        ApproximationKind.UNCOUNTED, "convolution", 1, unknown="cuDNN workspaces"
    )
    entries = tuple(
        LineEntry(0, 1, one.device, 1, 0.0, 0, 0, found, (approximation,) if "gap" in found else ())
        for one in devices
        if (found := stats.get(one.device.name.replace(":", ""))) is not None
    )
    function = FunctionInfo("f", "train.py", 1, ("pass",))
    failures = {(0, 1): 5} if run is FAILED else {}
    profile = RecordedProfile(
        (run,), tuple(devices), (function,), entries, (), (), failures=failures
    )
    return sentences(verdicts(profile))


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        (gpu(0), "peak 18.00 GiB reserved + 1.00 GiB context of 24.00 GiB: fits, 5.00 GiB free"),
        (
            gpu(0, taken=3 * GIB),
            (
                "peak 18.00 GiB reserved + 1.00 GiB context + 2.00 GiB of other programs of"
                " 24.00 GiB: fits, 3.00 GiB free"
            ),
        ),
        (
            gpu(0, context=0),
            (
                "peak 18.00 GiB reserved + 1.00 GiB of other programs of 24.00 GiB: fits, 5.00 GiB"
                " free"
            ),
        ),
        (
            gpu(0, context=None),
            (
                "peak 18.00 GiB reserved + 1.00 GiB context and other programs of 24.00 GiB: fits,"
                " 5.00 GiB free"
            ),
        ),
        (gpu(0, taken=0, context=0), "peak 18.00 GiB reserved of 24.00 GiB: fits, 6.00 GiB free"),
    ],
)
def test_what_of_the_gpu_the_program_could_not_have(device, sentence):
    assert told([device]) == [sentence]


BEGIN = "peak 18.00 GiB reserved + 1.00 GiB context of 24.00 GiB: "


@pytest.mark.parametrize(
    ("run", "stats", "end"),
    [
        (RUN, {"gap": 1}, "fits as far as memory is counted, 5.00 GiB free"),
        (BROKEN, {}, "fitted until the program ended early, 5.00 GiB free"),
        (RUN, {"num_ooms": 2}, "ran out of memory, which the program handled"),
        (FAILED, {"num_ooms": 1}, "does not fit"),
        (FAILED, {}, "does not fit"),
    ],
)
def test_how_a_run_ends(run, stats, end):
    assert told([gpu(0)], run, cuda0=stats) == [BEGIN + end]


def test_of_two_devices_the_one_that_ran_out_does_not_fit():
    assert told([gpu(0), gpu(1)], FAILED, cuda1={"num_ooms": 1}) == [
        f"cuda:0: {BEGIN}fitted until the program ended early, 5.00 GiB free",
        f"cuda:1: {BEGIN}does not fit",
    ]


def test_what_has_no_verdict():
    host = replace(gpu(0), device=DeviceInfo("cpu", "", simulated=False))

    assert told([gpu(0, taken=None), gpu(1, capacity=0), gpu(2, peak_active=0), host]) == []
    profile = RecordedProfile((RUN, RUN), (gpu(0),), (), (), (), ())
    assert verdicts(profile) == ()


@pytest.mark.parametrize(
    ("device", "end"),
    [
        (uncounted(None, None), "fits as far as memory is counted, 5.00 GiB free"),
        (uncounted(4 * GIB, 4 * GIB), "fits either way, 5.00 GiB free, up to 4.00 GiB not counted"),
        (uncounted(6 * GIB, 6 * GIB), "may not fit, 5.00 GiB free, up to 6.00 GiB not counted"),
        (uncounted(6 * GIB, 0), "fits either way, 5.00 GiB free, up to 6.00 GiB not counted"),
    ],
)
def test_memory_that_is_not_counted_fits_up_to_its_bound(device, end):
    [sentence] = told([device])
    assert sentence.partition(": ")[2] == end
