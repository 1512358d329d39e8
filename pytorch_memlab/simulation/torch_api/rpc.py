"""``torch.distributed.rpc`` under simulation: what its workers do is not covered."""

from __future__ import annotations

import functools
import sys

from ..._common.patches import Patches
from ..machine.machine import Machine
from ..machine.unsupported import refusal


def install(_machine: Machine, patches: Patches) -> None:
    """Refuse to wait for other workers, until undone."""
    original = getattr(sys.modules.get("torch.distributed.rpc"), "init_rpc", None)
    if original is not None:
        refused = refusal("torch.distributed.rpc.init_rpc")
        patches.set_by_name((original, functools.wraps(original)(refused)))
