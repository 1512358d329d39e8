"""``run -o step.svg``: the GPU memory of a whole run over time."""

from __future__ import annotations

import os
import sys
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest
import torch
from support.python_process import run_python

from pytorch_memlab.cli.main import main
from pytorch_memlab.cli.run.files import TimelinePicture
from pytorch_memlab.simulation import simulate

TRAIN = """\
import torch

net = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(2):
    net(torch.ones(4096, 512, device="cuda")).sum().backward()
    optimizer.step()
"""


def texts(name):
    root = ElementTree.parse(name).getroot()
    return [
        "".join(one.itertext()).strip() for one in root.iter("{http://www.w3.org/2000/svg}text")
    ]


@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_the_picture_has_the_capacity_the_peak_and_the_steps(write, capsys):
    main(["run", "--gpu", "100MiB", "-o", "step.svg", "-o", "STEP.PNG", write(TRAIN)])

    printed, said = capsys.readouterr()
    assert said.splitlines()[1:3] == [
        "timeline written to step.svg",
        "timeline written to STEP.PNG",
    ]
    assert "## <module>" in printed
    found = texts("step.svg")
    assert "script.py · Simulated GPU (100.00 MiB), simulated" in found
    assert "capacity 100.0 MiB, above the picture" in found
    assert "parameters, 1.0 MiB" in found
    assert "2 optimizer steps" in found
    assert "peak · script.py:6 <module>" in found
    with open("STEP.PNG", "rb") as file:
        assert file.read(8) == b"\x89PNG\r\n\x1a\n"


def test_the_picture_of_one_gpu_of_two(write):
    script = write('import torch\nx = [torch.ones(1 << 18, device=f"cuda:{n}") for n in (0, 1)]\n')
    main(["run", "--gpu", "1GiB", "--num-gpus", "2", "--device", "cuda:1", "-o", "a.svg", script])
    heads = [text for text in texts("a.svg") if text.startswith("cuda:")]
    (head,) = heads
    assert head.startswith("cuda:1: peak 1.0 MiB of 1.00 GiB (0.1%) at script.py:2 <")
    assert head.endswith(">, 2.0 MiB reserved")


def test_a_program_that_runs_out_of_memory_has_its_picture(write):
    script = write('import torch\n\nx = torch.ones(1 << 30, device="cuda")\n')
    done = run_python(
        ["-m", "pytorch_memlab", "run", "--gpu", "1GiB", "-o", "a.svg", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 1
    assert "timeline written to a.svg" in done.stderr
    assert "out of memory" in texts("a.svg")


def test_on_a_real_gpu_the_events_are_those_of_pytorch(tmp_path, monkeypatch, capsys):
    """A stand-in: what PyTorch would record is a simulated snapshot, with no simulation around."""
    monkeypatch.chdir(tmp_path)
    with simulate("24GiB"):
        torch.cuda.memory._record_memory_history()
        kept = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
        del kept
    whole_run = SimpleNamespace(snapshot=lambda: snapshot)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    gpu = SimpleNamespace(total_memory=50 << 20, name="H9")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    TimelinePicture("a.svg", "train.py").finish(None, whole_run)
    assert capsys.readouterr().err == "timeline written to a.svg\n"
    found = texts("a.svg")
    assert "train.py · H9" in found
    assert "capacity 50.0 MiB, above the picture" in found
    assert any(text.startswith("test_run_picture.py:") and "3.0 MiB" in text for text in found)


def test_a_program_without_a_gpu_has_no_picture(write, capsys, tmp_path):
    main(["run", "-o", "step.svg", write("print('done')\n")])
    assert "no timeline is drawn: the program used no GPU\n" in capsys.readouterr().err
    assert not (tmp_path / "step.svg").exists()


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (
            "step.gif",
            "cannot tell the format of step.gif: end it in .txt, .html, .json, .pickle,",
        ),
        ("missing/step.svg", "cannot write missing/step.svg: no such folder"),
    ],
)
def test_a_wrong_output_is_refused_before_the_program_runs(write, capsys, output, message):
    assert main(["run", "-o", output, write("print('ran')\n")]) == 2
    printed, said = capsys.readouterr()
    assert "ran" not in printed
    assert said.startswith(f"pytorch-memlab run: error: {message}")


def test_no_matplotlib_is_noticed_before_the_program_runs(write, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["run", "-o", "step.svg", write("print('ran')\n")]) == 2
    printed, said = capsys.readouterr()
    assert "ran" not in printed
    assert said.startswith("pytorch-memlab run: error: SVG and PNG pictures need matplotlib:")
