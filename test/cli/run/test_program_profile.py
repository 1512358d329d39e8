"""The profile of a program that ``run`` makes."""

from __future__ import annotations

import pytest

from pytorch_memlab.cli.run.program_profile import _is_critical
from pytorch_memlab.profiles.recorded import MeasuredDevice, RecordedProfile
from pytorch_memlab.records import DeviceInfo


@pytest.mark.parametrize(("reserved", "is_critical"), [(899, False), (900, True)])
def test_a_gpu_with_nine_tenths_taken_is_nearly_full(reserved: int, is_critical: bool) -> None:
    device = MeasuredDevice(DeviceInfo("cuda:0", "GPU", simulated=True), 1000, 1, 1, reserved)
    assert _is_critical(RecordedProfile((), (device,), (), (), (), ())) is is_critical
