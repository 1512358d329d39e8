"""One process of several that ``torchrun`` started: its files, and whether it prints."""

from __future__ import annotations

import os
from pathlib import PurePath


def path_of_rank(path: str) -> str:
    """The file of this process: ``{rank}`` and ``{pid}`` are filled in, or the rank is added."""
    rank = os.environ.get("RANK", "0")
    filled = path.replace("{rank}", rank).replace("{pid}", str(os.getpid()))
    if filled != path or not _is_one_of_several():
        return filled
    plain = PurePath(path)
    return str(plain.with_name(f"{plain.stem}.rank{rank}{plain.suffix}"))


def prints() -> bool:
    """True if this process prints: of several that ``torchrun`` started, the first one does."""
    return not _is_one_of_several() or os.environ.get("RANK") == "0"


def _is_one_of_several() -> bool:
    # Without torchrun, RANK and WORLD_SIZE may ask for one simulated rank of many.
    several = os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1")
    return several and "TORCHELASTIC_RUN_ID" in os.environ
