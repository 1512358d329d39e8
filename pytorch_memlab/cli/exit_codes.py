"""Exit codes that a command gives beside those of the program that it runs."""

from __future__ import annotations

from pytorch_memlab.simulation import active

USAGE_ERROR = 2
"""The command line cannot be carried out."""
DOES_NOT_FIT = 3
"""The program runs out of memory on a simulated GPU."""


def does_not_fit(error: BaseException | None) -> bool:
    """Whether an error says that a simulated GPU ran out of memory.

    Args:
        error: what ended the program, None if nothing did.
    """
    if error is None or active.machine is None:
        return False
    import torch

    return isinstance(error, torch.cuda.OutOfMemoryError)
