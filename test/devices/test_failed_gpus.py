"""GPUs that fail while a program runs: what was measured is shown and saved all the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from support.blind import blind
from support.failed_cuda import ILLEGAL_ACCESS, fail_cuda

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab.line_profiler.saved_profile import load

KIB = 1024


@pytest.fixture
def gpu() -> Iterator[None]:
    with blind(), simulate("24GiB"):
        yield


def block(kib: int) -> torch.Tensor:
    return torch.empty(kib * KIB, dtype=torch.uint8, device="cuda")


def test_a_profile_is_saved_after_an_asynchronous_error(gpu, monkeypatch, tmp_path):
    def work():
        kept = block(4)
        fail_cuda(monkeypatch)
        torch.cuda.synchronize()
        return kept

    profiler = LineProfiler(work, history=True)
    with pytest.raises(RuntimeError, match=ILLEGAL_ACCESS), profiler:
        work()
    profiler.save(tmp_path / "p.json")
    (table,) = load(tmp_path / "p.json").display(columns="active_bytes.all.peak").report.tables
    assert table.device.description == "Simulated GPU (24.00 GiB)"
    assert list(table.rows.values()) == [(0,), (4 * KIB,), (4 * KIB,), (4 * KIB,)]
    (device,) = profiler.recorded().devices
    assert (device.capacity, device.taken, device.peak_active) == (24 * 2**30, None, 4 * KIB)
    profiler.to_html(tmp_path / "p.html")
    assert "4.0 KiB" in (tmp_path / "p.html").read_text()
