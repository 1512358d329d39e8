"""Why PyTorch can use no GPU: a driver that is too old, a build for the CPU, hidden GPUs."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from pytorch_memlab.cli.main import main
from pytorch_memlab.devices import why_no_gpu as module
from pytorch_memlab.devices.why_no_gpu import why_no_gpu


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose driver has a file, once that is written."""
    path = tmp_path / "version"
    monkeypatch.setattr(module, "_DRIVERS", {str(path): "NVIDIA"})
    for name in module._HIDING:
        monkeypatch.delenv(name, raising=False)
    return path


def is_built_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")


def test_a_machine_without_a_driver_has_no_gpu(driver: Path) -> None:
    assert not driver.exists()
    assert why_no_gpu() == "this machine has no CUDA GPU"


def test_a_build_for_the_cpu_on_a_machine_with_a_driver(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.touch()
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    monkeypatch.setattr(torch.version, "cuda", None)
    found = "torch 2.13.0+cpu is built for the CPU, and there is a driver of NVIDIA"
    assert why_no_gpu() == found


def test_hidden_gpus(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.touch()
    is_built_for_cuda(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-7c1f")
    assert why_no_gpu() == "CUDA_VISIBLE_DEVICES=MIG-7c1f shows no GPU"


@pytest.mark.knows_simulation("the notice that a GPU is simulated")
def test_run_says_that_the_driver_is_too_old(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def is_available() -> bool:
        warnings.warn(
            "CUDA initialization: The NVIDIA driver on your system is too old (found version "
            "11040). Please update your GPU driver\n(Triggered internally)",
            stacklevel=2,
        )
        return False

    script = tmp_path / "train.py"
    script.write_text("import torch\ntorch.ones(1).cuda()\n")
    is_built_for_cuda(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main(["run", str(script)])
    assert (
        "(PyTorch cannot use a GPU: The NVIDIA driver on your system is too old (found version "
        "11040); choose another with --gpu NAME"
    ) in " ".join(capsys.readouterr().err.split())
