"""The pools of CUDA graphs in the reports of a run, a peak, and ``fit``."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytorch_memlab import fit, load
from pytorch_memlab.cli.main import main
from pytorch_memlab.history.holders import peak_holders
from pytorch_memlab.simulation.machine.torch_release import RELEASE

MIB = 2**20

SCRIPT = """\
import torch


def take(mib):
    return torch.zeros(mib << 20, dtype=torch.uint8, device="cuda")


graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    kept = take(40)
    take(60)
last = take(80)
"""
REQUEST, CAPTURE = 5, 9

SEEDS = 2 if RELEASE < (2, 14) else 0
"""MiB of the segment of the seeds: from 2.14 on a graph that draws nothing has none
(``CUDAGeneratorState::get_capture_state``)."""
RESERVED = 180 + SEEDS
EVENTS = 10 if SEEDS else 7
"""Four segments with seeds, else three; three tensors and a free, and both seeds."""

pytestmark = pytest.mark.skipif(RELEASE < (2, 13), reason="older graphs have other seeds")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder to work in, with a script."""
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(SCRIPT)
    return "script.py"


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main([*arguments]) == 0
    return " ".join("".join(capsys.readouterr()).split())


@pytest.mark.knows_simulation("which capture made a pool")
def test_a_run_and_its_peak(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        f"peak {RESERVED}.0 MiB reserved (100.0 MiB of it by CUDA graphs) of 24.00 GiB: fits, "
        "23.82 GiB free"
    ) in printed(capsys, "run", "--gpu", "24GiB", "--history", "-o", "p.json", script)
    assert printed(capsys, "peak", "p.json").startswith(
        f"cuda:0: 120.0 MiB in use at the peak, {RESERVED}.0 MiB reserved "
        f"(event {EVENTS} of {EVENTS}) "
        "reserved by CUDA graphs 100.0 MiB (1 capture: script.py:9); of it, 60.0 MiB is free, and "
        "no other code gets it 120.0 MiB"
    )
    profile = load("p.json").recorded()
    live, history = profile.peaks["cuda:0"], profile.history
    assert history is not None
    replayed = peak_holders(history)
    assert live.peak.private[:2] == replayed.peak.private[:2] == (100 * MIB, 60 * MIB)
    captured = [(Path(file).name, line) for file, line in live.peak.private.captures]
    assert captured == [("script.py", CAPTURE)]
    assert [line for _, line in replayed.private_lines()] == [REQUEST]
    page = Path("page.html")
    printed(capsys, "peak", "p.json", "-o", str(page))
    assert "reserved by CUDA graphs 100.0 MiB (1 capture: script.py:9)" in page.read_text()


def test_a_snapshot_names_the_requests(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "run", "--gpu", "24GiB", "-o", "p.pickle", script)
    assert (
        "reserved by CUDA graphs or memory pools 100.0 MiB (requested at script.py:5); of it, "
        "60.0 MiB is free, and no other code gets it"
    ) in printed(capsys, "peak", "p.pickle")


@pytest.mark.knows_simulation("fit simulates GPUs, also where there are real ones")
def test_fit_gives_no_eager_code_what_a_graph_keeps(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        "100.0 MiB of the peak: reserved by CUDA graphs; no other code gets what is free there"
    ) in printed(capsys, "fit", "--gpu", "24GiB,190MiB,170MiB", script)
    frame = fit(script, ["24GiB", "190MiB", "170MiB"])
    assert list(frame["fits"]) == [False, True, True]
    assert list(frame["peak"]) == [RESERVED * MIB] * 3
    assert list(frame["graphs"]) == [100 * MIB] * 3


def test_the_report_of_categories(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    cached = f"{SEEDS}.0 MiB" if SEEDS else "0 B"
    assert (
        "reserved by CUDA graphs 60.0 MiB 60.0 MiB "
        f"cached {cached} {cached} = reserved {RESERVED}.0 MiB {RESERVED}.0 MiB"
    ) in printed(capsys, "run", "--gpu", "24GiB", "--report", script)
