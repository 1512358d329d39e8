"""``flex_attention``: its score functions are traced on the CPU; Note [Traced score functions]."""

from __future__ import annotations

import sys
from functools import partial

from ..._common.patches import Patches
from ..dispatch.flex_attention import trace
from ..machine.machine import Machine


def install(_machine: Machine, patches: Patches) -> None:
    """Trace score functions on the CPU, until undone."""
    module = sys.modules.get("torch._higher_order_ops.flex_attention")
    original = getattr(module, "create_fw_bw_graph", None)
    if original is not None:
        patches.set(module, "create_fw_bw_graph", partial(trace, original))
