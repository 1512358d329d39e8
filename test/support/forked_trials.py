"""Trials in forks of a process that has torch imported, in a tenth of the time of a new Python."""

from __future__ import annotations

import os
from typing import Any

from pytorch_memlab.fitting import child
from support.python_process import ForkedPython

NEW_PYTHON = child._NewPython
"""Where a user gets a new Python, this starts it."""


class ForkedTrial(ForkedPython):
    """Runs what a new Python would run for a trial."""

    def __init__(self, work: child.ChildWork[Any, Any], result: str) -> None:
        request = f"{result}.request"
        with open(request, "wb") as file:
            file.write(child.request_of(work))
        with open(work.output or os.devnull, "wb") as output:
            super().__init__(["-c", child.NEW_PYTHON, request, result], output)
