"""A digest of a rank: its GPU, and the lines and categories that hold most of it."""

from __future__ import annotations

from dataclasses import replace

from support.sample_reports import CUDA0, CUDA1

from pytorch_memlab.history.holders import PeakHolders
from pytorch_memlab.history.model import Category, Frame, UsedBlock
from pytorch_memlab.history.peak import Peak
from pytorch_memlab.profiles.rank_digest import digest_of
from pytorch_memlab.profiles.recorded import MeasuredDevice, RecordedProfile, Run
from pytorch_memlab.records import DeviceInfo, FunctionInfo, LineEntry

MIB = 2**20


def test_a_digest_is_of_the_gpu_that_held_most_and_of_no_cpu():
    devices = (
        MeasuredDevice(DeviceInfo("cpu", "host", False), 64 << 30, 900 * MIB, 0, 900 * MIB),
        MeasuredDevice(CUDA1, 80 << 30, 3 * MIB, 0, 20 * MIB),
        MeasuredDevice(CUDA0, 24 << 30, 7 * MIB, 0, 22 * MIB, taken=5 * MIB),
    )
    run = Run("train.py", (), {}, "", 1.0, is_dry_run=False)
    lines = (LineEntry(0, 3, CUDA0, 1, 0.1, 2 * MIB, 0, {"allocated_bytes.all.peak": 7 * MIB}),)
    stacks = [(Frame("/srv/x/train.py", 3, "main"),), (Frame("/srv/x/model.py", 7, "forward"),)]
    blocks = (
        UsedBlock(0, 4 * MIB, 4 * MIB, 0, 0, Category.PARAMETERS, ""),
        UsedBlock(1, 3 * MIB, 3 * MIB, 1, 0, Category.SAVED, ""),
    )
    holders = PeakHolders(Peak(0, 7 * MIB, 22 * MIB, 4, 9, blocks), stacks)
    function = FunctionInfo("main", "/srv/x/train.py", 1, ("",) * 5)
    whole = RecordedProfile((run,), devices, (function,), lines, (), (), peaks={"cuda:0": holders})

    digest = digest_of(whole)
    assert (digest.device, digest.capacity, digest.active, digest.reserved, digest.taken) == (
        *("cuda:0", 24 << 30, 7 * MIB),
        *(22 * MIB, 5 * MIB),
    )
    assert sorted(digest.categories.values()) == [3 * MIB, 4 * MIB]
    assert digest.held == {"train.py:3": 4 * MIB, "model.py:7": 3 * MIB}
    assert digest.lines == {"train.py:3": (7 * MIB, 2 * MIB)}
    idle = digest_of(replace(whole, devices=devices[:1]))
    assert (idle.device, idle.active, idle.held) == ("", 0, {})
