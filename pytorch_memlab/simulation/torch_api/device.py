"""``torch.device(0)``: an index alone means the accelerator, which builds without one refuse."""

from __future__ import annotations

from typing import Any

import torch


def make_device(*args: Any, **kwargs: Any) -> torch.device:
    """Stands for the constructor; the class stays torch's own, whose identity programs rely on.

    Returns:
        that of a GPU for a bare index, else what ``torch.device`` returns.
    """
    index = args[0] if len(args) == 1 and not kwargs else kwargs.get("device")
    if isinstance(index, int):
        return torch.device("cuda", index)
    return torch.device(*args, **kwargs)
