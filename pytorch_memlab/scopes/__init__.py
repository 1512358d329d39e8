"""Peak windows over a device: the one owner of peak resets."""

from .._common.process.host_scope import HostScope
from ..memory_fields import FIELDS
from .intervals import HighestInterval
from .peak_scope import DevicePeaks, PeakScope, RunPeaks
from .peak_tracker import PeakTracker, Window, peak_tracker
from .row import ZERO, Sample

__all__ = [
    "FIELDS",
    "ZERO",
    "DevicePeaks",
    "HighestInterval",
    "HostScope",
    "PeakScope",
    "PeakTracker",
    "RunPeaks",
    "Sample",
    "Window",
    "peak_tracker",
]
