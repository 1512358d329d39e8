"""``import pytorch_memlab.attachable``: ``pytorch-memlab attach`` can record this process later."""

from __future__ import annotations

import atexit
from contextlib import ExitStack

from .jobs.attached import AttachedProcess, OwnBlackBox, RunningProgram

_process = ExitStack()
AttachedProcess(RunningProgram(), OwnBlackBox()).start(_process)
atexit.register(_process.close)
