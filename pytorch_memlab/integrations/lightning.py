"""For ``lightning``: ``GPUMemoryMonitor``."""

from __future__ import annotations

from lightning.pytorch import Callback

from .lightning_hooks import LightningHooks


class GPUMemoryMonitor(LightningHooks, Callback):
    """A callback of ``lightning.pytorch``."""

    __doc__ = LightningHooks.__doc__
