"""``torch.nn`` under simulation: what its C++ asks of the accelerator."""

from __future__ import annotations

from typing import Any

import torch

from ..._common.patches import Patches
from ..machine.machine import Machine


def install(machine: Machine, patches: Patches) -> None:
    """Let a bare number in ``Module.to`` and its like mean a simulated GPU, until undone."""
    module: Any = torch._C._nn
    parse = module._parse_to

    def parse_to(*args: Any, **kwargs: Any) -> Any:
        if args and _is_number(args[0]):
            args = (machine.gpu(args[0]).device, *args[1:])
        if _is_number(kwargs.get("device")):
            kwargs["device"] = machine.gpu(kwargs["device"]).device
        return parse(*args, **kwargs)

    patches.set(module, "_parse_to", parse_to)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
