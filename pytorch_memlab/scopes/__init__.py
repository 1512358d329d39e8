"""Peak windows over a device: the one owner of peak resets."""

from .ledger import Ledger, Window, ledger_of
from .peak_scope import PeakScope
from .sample import FIELDS, ZERO, Sample

__all__ = ["FIELDS", "ZERO", "Ledger", "PeakScope", "Sample", "Window", "ledger_of"]
