"""Peak windows over a device: the one owner of peak resets."""

from ..memory_fields import FIELDS
from .host_scope import HostScope
from .ledger import Ledger, Window, ledger_of
from .maximum import HighestInterval
from .peak_scope import PeakScope
from .run_peaks import DevicePeaks, RunPeaks
from .sample import ZERO, Sample

__all__ = [
    "FIELDS",
    "ZERO",
    "DevicePeaks",
    "HighestInterval",
    "HostScope",
    "Ledger",
    "PeakScope",
    "RunPeaks",
    "Sample",
    "Window",
    "ledger_of",
]
