"""Profiles that tests render as pages."""

from __future__ import annotations

from dataclasses import replace

from peaks import SMALL as PEAK
from support.sample_reports import CUDA0, CUDA1
from timelines import HOSTILE

from pytorch_memlab.history.holders import PeakHolders
from pytorch_memlab.history.model import (
    AllocationHistory,
    Category,
    DeviceHistory,
    Event,
    EventLog,
    Frame,
    Segment,
)
from pytorch_memlab.line_profiler.saved_profile import SavedProfile
from pytorch_memlab.profiles.merging import merged
from pytorch_memlab.profiles.recorded import (
    MeasuredDevice,
    ProgramError,
    RecordedCall,
    RecordedProfile,
    Run,
    ShownRemedy,
)
from pytorch_memlab.records import Approximation, ApproximationKind, FunctionInfo, LineEntry
from pytorch_memlab.render import report_page

MIB = 2**20
RUN = Run(
    "/home/me/train.py",
    ("--epochs", "1"),
    {"torch": "2.13.0", "python": "3.11.7"},
    "2026-11-22T02:30:35+00:00",
    1.25,
    is_dry_run=True,
)
MAIN = FunctionInfo(
    "main",
    "/nowhere/train.py",
    1,
    (
        "def main():",
        "    model = Net().cuda()",
        "    step(model)  # one of them",
        "",
        "    del model",
    ),
)
STEP = FunctionInfo(
    "Net.step",
    "/nowhere/train.py",
    9,
    ('def step(self, x="a"):', "    y = x @ self.w", "    return y if x else None"),
)
UNUSED = FunctionInfo("unused", "/nowhere/other.py", 1, ("def unused():", "    return 1"))
MYSTERY = Approximation(ApproximationKind.UNMODELLED, "mystery", 2, 4096)


ERROR = ProgramError(
    "Traceback (most recent call last):\ntorch.OutOfMemoryError: no room\n",
    "Out of memory on cuda:0 at train.py:11, in step\n  in use 16.0 MiB\n",
    (
        ShownRemedy(
            "train.py:3 keeps its graph",
            "step(model).item()\n",
            "--- train.py\n+++ train.py\n@@ -1,3 +1,3 @@\n def main():\n-    step(model)\n"
            "+    step(model).item()\n",
            "tried: peak 16.0 MiB -> 8.0 MiB, runs to its end",
        ),
        ShownRemedy("the batch is too large", "train.py --batch 8\n", "", "not tried"),
    ),
    ("not tried: the program cannot run twice",),
)


def line(function, number, peak, kept=0, *, hits=1, device=CUDA0, approximations=()):
    """A line with its peak and what it kept, or freed if negative, in MiB."""
    stats = {
        "active_bytes.all.peak": peak * MIB,
        "active_bytes.all.allocated": max(kept, 0) * MIB,
        "reserved_bytes.all.peak": 20 * MIB,
    }
    sizes = max(kept, 0) * MIB, max(-kept, 0) * MIB
    return LineEntry(function, number, device, hits, 0.001, *sizes, stats, approximations)


PROFILE = RecordedProfile(
    (RUN,),
    (MeasuredDevice(CUDA0, 40 * MIB, 16 * MIB, 16 * MIB, 20 * MIB),),
    (MAIN, STEP, UNUSED),
    (
        line(0, 1, 0),
        line(0, 2, 8, 8),
        line(0, 3, 16, 6),
        line(0, 5, 14, -8),
        line(1, 9, 8, hits=3),
        line(1, 10, 14, 2, hits=3, approximations=(MYSTERY,)),
        line(1, 11, 16, hits=3),
        line(2, 1, 0, hits=0),
    ),
    (RecordedCall(1, 0, "/nowhere/train.py", "main", 3, 3, {"cuda:0": 6 * MIB}),),
    ("active_bytes.all.peak", "reserved_bytes.all.peak"),
    notes=("simulated GPU: H100",),
    peaks={"cuda:0": PEAK},
)


def with_history(profile=PROFILE):
    """The profile with a history of one allocation, at line 10."""
    frame = Frame("/nowhere/train.py", 10, "step")
    events = [Event("alloc", 0, 16 * MIB, 0, 0, 1, 0, Category.SAVED)]
    device = DeviceHistory(0, EventLog(events), (), [Segment(0, 20 * MIB, False, ())])
    return replace(profile, history=AllocationHistory([device], [(), (frame,)]))


def two_ranks():
    """The profile of two ranks, of which the second one kept more."""
    devices = (replace(PROFILE.devices[0], peak_active=32 * MIB),)
    more = replace(
        PROFILE,
        runs=(replace(RUN, rank=1, world_size=2),),
        devices=devices,
        entries=(*PROFILE.entries[:2], line(0, 3, 32, 6)),
    )
    first = replace(PROFILE, runs=(replace(RUN, world_size=2),))
    return merged({"a.json": first, "b.json": more})


def hostile():
    """A profile all of whose names try to leave their place."""
    code = (f"def f():  # {HOSTILE}", f"    x = '{HOSTILE}'")
    function = FunctionInfo(HOSTILE, f"/nowhere/{HOSTILE}.py", 1, code)
    approximation = Approximation(ApproximationKind.UNMODELLED, HOSTILE, 1, 1)
    return replace(
        PROFILE,
        runs=(replace(RUN, program=HOSTILE, arguments=(HOSTILE,), exception=HOSTILE),),
        devices=(replace(PROFILE.devices[0], device=replace(CUDA0, description=HOSTILE)),),
        functions=(function,),
        entries=(
            line(
                0,
                1,
                3,
                1,
                device=replace(CUDA0, description=HOSTILE),
                approximations=(approximation,),
            ),
        ),
        calls=(),
        notes=(HOSTILE,),
        failures={(0, 2): 5},
        errors=(
            ProgramError(
                HOSTILE,
                HOSTILE,
                (ShownRemedy(HOSTILE, HOSTILE, f"+{HOSTILE}", HOSTILE),),
                (HOSTILE,),
            ),
        ),
    )


def two_devices():
    """The profile with a second GPU that holds less."""
    second = replace(PROFILE.devices[0], device=CUDA1, peak_active=MIB)
    held = PeakHolders(replace(PEAK.peak, device=1), PEAK.stacks)
    return replace(
        PROFILE,
        devices=(*PROFILE.devices, second),
        entries=(*PROFILE.entries, line(0, 2, 1, 1, device=CUDA1)),
        peaks={"cuda:0": PEAK, "cuda:1": held},
    )


def page_of(profile, columns=None):
    """The page of a profile."""
    return report_page.render(profile, SavedProfile(profile).report_of_each_device(None, columns))
