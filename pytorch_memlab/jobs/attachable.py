"""Imported by a program: ``pytorch-memlab attach`` can record the process from then on."""

from __future__ import annotations

import atexit
from contextlib import ExitStack

from .attached import AttachedProcess, OwnBlackBox, RunningProgram

_process = ExitStack()
AttachedProcess(RunningProgram(), OwnBlackBox()).start(_process)
atexit.register(_process.close)
