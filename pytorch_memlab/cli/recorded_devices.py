"""The GPUs of a recorded history that a command looks at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytorch_memlab.errors import UsageError

if TYPE_CHECKING:
    from pytorch_memlab.history.model import AllocationHistory


def recorded_devices(history: AllocationHistory, path: str, device: int | None) -> list[int]:
    """The GPU that was asked for, or else all that were used."""
    used = [one.device for one in history.devices if one.events or one.segments]
    if not used:
        raise UsageError(
            f"{path} has no events: record them with torch.cuda.memory._record_memory_history() "
            "before the program allocates"
        )
    if device is None:
        return used
    if device not in [one.device for one in history.devices]:
        known = " or ".join(str(one) for one in used)
        raise UsageError(f"{path} has no GPU {device}: --device takes {known}")
    return [device]
