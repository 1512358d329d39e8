"""The host as a device: what its tensors count."""

from __future__ import annotations

import torch

from pytorch_memlab.devices.cpu import CpuDevice
from pytorch_memlab.memory_fields import FIELDS

COUNTED = ("allocation", "active")
IN_BYTES = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")


def test_all_memory_that_a_tensor_has_is_reserved_for_it_and_none_of_it_is_oversize() -> None:
    device = CpuDevice()
    device.start_tracking()
    try:
        kept = [torch.empty(nbytes, dtype=torch.uint8) for nbytes in (1000, 2000)]
        del kept[0]
    finally:
        device.stop_tracking()
    expected = {
        field: 0
        for field in FIELDS
        if field.endswith((".current", ".peak", ".allocated", ".freed"))
    }
    for groups, now, highest, gone in ((COUNTED, 1, 2, 1), (IN_BYTES, 2000, 3000, 1000)):
        for group in groups:
            values = {"current": now, "peak": highest, "allocated": highest, "freed": gone}
            expected |= {f"{group}.all.{metric}": value for metric, value in values.items()}
    assert flat(device.stats()) == expected
    device.reset_peaks()
    expected |= {f"{group}.all.peak": 1 for group in COUNTED}
    expected |= {f"{group}.all.peak": 2000 for group in IN_BYTES}
    assert flat(device.stats()) == expected
    assert [tensor.nbytes for tensor in kept] == [2000]


def flat(stats: object, name: str = "") -> dict[str, object]:
    """The fields of counters in groups, by their names in columns."""
    if not isinstance(stats, dict):
        return {name: stats}
    parts = (flat(part, f"{name}.{key}".lstrip(".")) for key, part in stats.items())
    return {field: value for part in parts for field, value in part.items()}
