"""``debug``: what a report of a fault pastes."""

from __future__ import annotations

import sys

import pytest
import torch

import pytorch_memlab
from pytorch_memlab import debug_info, simulate
from pytorch_memlab.cli.main import main


def rows(text: str) -> dict[str, str]:
    return dict(line.split("  ", 1) for line in text.splitlines())


def test_versions_and_that_nothing_is_traced_or_patched(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128")
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    assert main(["debug"]) == 0
    found = {name: value.strip() for name, value in rows(capsys.readouterr().out).items()}
    assert found["pytorch_memlab"] == pytorch_memlab.__version__
    assert found["torch"] == torch.__version__
    assert found["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:128"
    assert found["GPU"] == "none: the simulation is used"
    assert found["patched"] == "nothing"


@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_a_simulated_gpu_a_tracer_and_a_hook_are_named() -> None:
    def trace(*_: object) -> None: ...

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with simulate("a100"):
            found = {name: value.strip() for name, value in rows(debug_info()).items()}
    finally:
        sys.settrace(before)
    assert found["cuda:0"] == (
        "simulated NVIDIA A100-SXM4-80GB, 84,987,740,160 bytes, compute capability 8.0,"
        " 108 multiprocessors"
    )
    assert f"sys.settrace of {__name__}" in found["traced by"]
    in_cuda = [name for name in found["patched"].split(", ") if name.endswith("more of torch.cuda")]
    assert len(in_cuda) == 1
    assert int(in_cuda[0].split()[0]) > 10
    assert "sys.excepthook by pytorch_memlab._common.process.uncaught_errors" in found["patched"]
