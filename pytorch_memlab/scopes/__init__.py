"""Peak windows over a device: the one owner of peak resets."""

from ..memory_fields import FIELDS
from .host_scope import HostScope
from .ledger import Ledger, Window, ledger_of
from .maximum import HighestInterval
from .peak_scope import PeakScope
from .sample import ZERO, Sample

__all__ = [
    "FIELDS",
    "ZERO",
    "HighestInterval",
    "HostScope",
    "Ledger",
    "PeakScope",
    "Sample",
    "Window",
    "ledger_of",
]
