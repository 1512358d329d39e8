"""For ``pytorch_lightning``: ``GPUMemoryMonitor``."""

from __future__ import annotations

from pytorch_lightning import Callback

from .lightning_hooks import LightningHooks


class GPUMemoryMonitor(LightningHooks, Callback):
    """A callback of ``pytorch_lightning``."""

    __doc__ = LightningHooks.__doc__
