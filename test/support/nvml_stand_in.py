"""A module as nvidia-ml-py's ``pynvml``: the calls that the package makes, answered from lists."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

OURS = os.getpid()

Processes = Mapping[int, int | None]
"""Bytes by process; None as NVML on Windows and WSL, which does not know them."""


class NVMLError(Exception):
    """A call failed."""


def install(
    patch: pytest.MonkeyPatch,
    processes: Processes | None = None,
    *,
    of_mps: Processes | None = None,
    uuid: str = "",
    driver: str | bytes = "580.65.06",
    fails_at: str = "",
) -> list[int]:
    """Put the module in. The list that comes back has a number for each ``nvmlInit`` still open.

    Args:
        patch: takes the module out again.
        processes: those of the GPU; None for calls that this driver does not have.
        of_mps: clients of its MPS server; None for a package without that call.
        uuid: the name that NVML has for the GPU, with its kind in front.
        driver: its version.
        fails_at: the name of the call that fails.
    """
    opened: list[int] = []
    module: Any = ModuleType("pynvml")

    def call(name: str, answer: Any) -> None:
        def answered(*arguments: Any) -> Any:
            if name == fails_at:
                raise NVMLError("Driver/library version mismatch")
            return answer(*arguments)

        setattr(module, name, answered)

    def handle_of(asked: str) -> str:
        if asked != uuid:
            raise NVMLError("Not Found")
        return asked

    def listed(found: Processes | None) -> Any:
        def processes_of(handle: str) -> list[SimpleNamespace]:
            assert handle == uuid
            if found is None:
                raise NVMLError("Not Supported")
            return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in found.items()]

        return processes_of

    module.NVMLError = NVMLError
    call("nvmlInit", lambda: opened.append(1))
    call("nvmlShutdown", opened.pop)
    call("nvmlSystemGetDriverVersion", lambda: driver)
    call("nvmlDeviceGetHandleByUUID", handle_of)
    call("nvmlDeviceGetComputeRunningProcesses", listed(processes))
    if of_mps is not None:
        call("nvmlDeviceGetMPSComputeRunningProcesses", listed(of_mps))
    patch.setitem(sys.modules, "pynvml", module)
    return opened
