"""GPUs that PyTorch cannot use, or does not use: nothing initialises CUDA, and nothing fails."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.blind import blind

from pytorch_memlab import LineProfiler, MemReporter, PeakScope, debug_info, simulate
from pytorch_memlab.courtesy import Courtesy
from pytorch_memlab.line_profiler.saved_profile import load
from pytorch_memlab.pytest_memlab.gpu_memory import GPUMemoryOfTest

TOO_OLD = (
    "CUDA initialization: The NVIDIA driver on your system is too old (found version 11040). "
    "Please update your GPU driver"
)


def work() -> torch.Tensor:
    return torch.ones(10) + 1


def profiled() -> LineProfiler:
    with LineProfiler(work, history=True) as profiler:
        work()
    return profiler


def shows_a_table() -> None:
    assert "return torch.ones(10) + 1" in str(profiled().display())


def saves_a_profile(path: Path) -> None:
    profiled().save(path / "p.json")
    profiled().to_html(path / "p.html")
    (device,) = load(path / "p.json").recorded().devices
    assert (device.device.description, device.capacity, device.taken) == ("CUDA GPU", 0, None)


def reports_tensors() -> None:
    model = torch.nn.Linear(2, 2)
    MemReporter(model).report(verbose=True)


def measures_a_peak() -> None:
    with PeakScope() as scope:
        work()
    assert scope.peak == 0


def lends_the_gpu() -> None:
    lender = Courtesy()
    lender.yield_memory()
    lender.restore()


def measures_a_test(path: Path) -> None:
    memory = GPUMemoryOfTest()
    memory.begin()
    memory.end()
    assert memory.measured(None, path).peak == 0


USES = (
    lambda _: shows_a_table(),
    saves_a_profile,
    lambda _: reports_tensors(),
    lambda _: measures_a_peak(),
    lambda _: lends_the_gpu(),
    measures_a_test,
)


@pytest.mark.parametrize("use", USES)
def test_a_program_that_uses_no_gpu_initialises_none(
    use: Callable[[Path], None], tmp_path: Path
) -> None:
    with blind(), simulate("24GiB"):
        use(tmp_path)
        assert not torch.cuda.is_initialized()


@pytest.mark.parametrize("use", USES)
def test_a_driver_with_which_cuda_does_not_start(
    use: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError(f"The NVIDIA driver on your system is too old ({TOO_OLD})")

    with blind(), simulate("24GiB"), monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "_lazy_init", fail)
        use(tmp_path)
        assert rows()["cuda:0"].startswith("not known: The NVIDIA driver on your system is too")


def test_a_driver_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_available() -> bool:
        warnings.warn(f"{TOO_OLD}\n(Triggered internally)", stacklevel=2)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert rows()["GPU"] == f"none that PyTorch can use ({TOO_OLD}): the simulation is used"
    assert rows()["torch is built for"] == "CUDA 13.0"


def test_rocm_has_names_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_HIP_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    with simulate("24GiB"):
        monkeypatch.setattr(torch.version, "cuda", None)
        monkeypatch.setattr(torch.version, "hip", "7.1.25424")
        found = rows()
        monkeypatch.undo()
    assert found["torch is built for"] == "ROCm 7.1.25424"
    assert "driver" not in found  # NVML would tell of NVIDIA's
    assert "cuda:0" in found


def rows() -> dict[str, Any]:
    """The block that a report of a fault has."""
    pairs = (line.split("  ", 1) for line in debug_info().splitlines())
    return {name: value.strip() for name, value in pairs}
