"""The driver tells of the memory of processes, or it does not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support import nvml_stand_in
from support.blind import blind
from support.nvml_stand_in import OURS

from pytorch_memlab import MemReporter, debug_info, simulate

MIB = 2**20
OTHER = OURS + 1


@pytest.fixture
def uuid() -> Iterator[str]:
    """The GPU's, of which another process has 1 GiB; PyTorch has reserved 20 MiB."""
    with blind(), simulate("24GiB", context="500MiB", others="1GiB"):
        kept = torch.ones(2 * MIB, device="cuda")
        yield str(torch.cuda.get_device_properties(0).uuid)
        del kept


def parts() -> tuple[int | None, int | None, int | None]:
    """Bytes in use on the GPU, those of the context, and those of other processes."""
    (record,) = MemReporter().snapshot().reconciliations
    return record.used, record.context, record.others


USED = (20 + 500 + 1024) * MIB
KNOWN = (USED, 500 * MIB, 1024 * MIB)
UNKNOWN = (USED, None, None)


@pytest.mark.parametrize(
    ("kind", "listed", "expected"),
    [
        ("GPU", {"processes": {OURS: 520 * MIB}}, KNOWN),
        # Several processes on the GPU: nvidia-smi shows more than ours.
        ("GPU", {"processes": {OTHER: 1024 * MIB, OURS: 520 * MIB}}, KNOWN),
        ("MIG", {"processes": {OURS: 520 * MIB}}, KNOWN),
        # Under MPS, NVML has the server among the processes, and its clients in another list.
        ("GPU", {"processes": {OTHER: 30 * MIB}, "of_mps": {OURS: 520 * MIB}}, KNOWN),
        ("GPU", {"processes": {OURS: None}}, UNKNOWN),  # WSL, and Windows with its own driver model
        ("GPU", {"processes": {1: 520 * MIB}}, UNKNOWN),  # a container with other process numbers
        ("GPU", {"processes": None}, UNKNOWN),
        ("GPU", {"processes": {OURS: 1}, "fails_at": "nvmlInit"}, UNKNOWN),
    ],
    ids=["one", "several", "MIG", "MPS", "WSL", "container", "not supported", "no library"],
)
def test_the_memory_of_this_process(
    uuid: str, monkeypatch: pytest.MonkeyPatch, kind: str, listed: Any, expected: Any
) -> None:
    opened = nvml_stand_in.install(monkeypatch, uuid=f"{kind}-{uuid}", **listed)
    assert parts() == expected
    assert opened == []


def test_without_the_package(uuid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert parts() == UNKNOWN
    assert row("driver") == "not known: nvidia-ml-py is not installed"


def row(name: str) -> str | None:
    """A row of the block that a report of a fault has."""
    rows = dict(line.split("  ", 1) for line in debug_info().splitlines())
    value = rows.get(name)
    return None if value is None else value.strip()


@pytest.mark.parametrize("driver", ["580.65.06", b"580.65.06"])
def test_the_version_of_the_driver(monkeypatch: pytest.MonkeyPatch, driver: Any) -> None:
    opened = nvml_stand_in.install(monkeypatch, driver=driver)
    assert row("driver") == "580.65.06"
    assert opened == []


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlSystemGetDriverVersion"])
def test_a_driver_that_does_not_tell_its_version(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    opened = nvml_stand_in.install(monkeypatch, fails_at=call)
    assert row("driver") == "not known: Driver/library version mismatch"
    assert opened == []
