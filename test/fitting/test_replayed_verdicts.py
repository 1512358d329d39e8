"""A verdict by a replay is that of a run on a GPU of that memory: peak, fits or not, what fails."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.distributed.fsdp
from support.trials import run_trial
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks.batch_programs import LORA_LAYER
from pytorch_memlab import simulate
from pytorch_memlab.fitting.child import ChildWork, run_in_children
from pytorch_memlab.fitting.target import ProgramTarget
from pytorch_memlab.fitting.trial import Settings
from pytorch_memlab.fitting.verdict import needed_memory, verdict
from pytorch_memlab.history.model import AllocationHistory, DeviceHistory, Event, EventLog
from pytorch_memlab.simulation.hardware.presets import find_gpu

ROOT = Path(__file__).parents[2]
MIB = 2**20

LM = """
import torch
from torch import nn

layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
model = nn.Sequential(nn.Embedding(500, 128), nn.TransformerEncoder(layer, 2), nn.Linear(128, 500))
model = model.cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    tokens = torch.randint(0, 500, (8, 256), device="cuda")
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

LORA = f"""
import torch
from torch import nn
{LORA_LAYER}
layers = [nn.Sequential(LoRA(nn.Linear(1024, 1024), 8), nn.GELU()) for _ in range(6)]
model = nn.Sequential(*layers).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])
for _ in range(4):
    x = torch.randn(2048, 1024, device="cuda", dtype=torch.bfloat16)
    model(x).float().pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

INFERENCE = """
import torch

cache = torch.empty(2, 0, 256, device="cuda")
weight = torch.randn(256, 256, device="cuda")
with torch.no_grad():
    for _ in range(400):
        new = torch.randn(2, 16, 256, device="cuda") @ weight
        cache = torch.cat([cache, new], 1)
"""

PROGRAMS = {
    "CNN": ("resnet.py", ["--batch", "16", "--size", "64"]),
    "language model": (LM, []),
    "diffusion": ("diffusion.py", []),
    "LoRA": (LORA, []),
    "FSDP rank": ("fully_sharded.py", []),
    "RNN": ("lstm_language_model.py", ["--width", "256"]),
    "growing cache": (INFERENCE, []),
}
WITH_TRANSFORMERS = {"Trainer": ("trainer.py", []), "generate": ("generate.py", [])}


def truth(request):
    """A run with the memory of a GPU: the most that was reserved, and what failed."""
    path, arguments, memory = request
    steps = 0

    def step(*_):
        nonlocal steps
        steps += 1
        if steps == 3:
            raise SystemExit(0)

    torch.set_num_threads(1)
    failed = None
    with simulate(memory, compute=False) as machine, patch.object(sys, "argv", [path, *arguments]):
        highest = 0

        def reserved(*_):
            nonlocal highest
            highest = max(highest, machine.gpus[0].allocator.reserved_bytes)

        machine.gpus[0].locked(machine.gpus[0].allocator.observe, reserved)
        hook = register_optimizer_step_post_hook(step)
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit:
            pass
        except torch.OutOfMemoryError as error:
            frames = []
            trace = error.__traceback__
            while trace is not None:
                frames.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
                trace = trace.tb_next
            request = machine.gpus[0].failure.request
            failed = request.requested, [line for file, line in frames if file == path][-1]
        hook.remove()
    return highest, failed


def check(source, arguments, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4" if source == "fully_sharded.py" else "1")
    path = tmp_path / "program.py"
    path.write_text(source if "\n" in source else (ROOT / "examples" / source).read_text())
    target = ProgramTarget(str(path), tuple(arguments))
    trial = run_trial(target, find_gpu(2**46), steps=3)
    assert trial.error == ""
    peak = verdict(trial, find_gpu(2**46), "", Settings()).reserved_peak
    answers = set()
    for memory in (peak, peak - 2 * MIB, peak * 3 // 4, peak // 2):
        found = verdict(trial, find_gpu(memory), "", Settings())
        work = ChildWork(truth, (os.fspath(path), list(arguments), memory), lambda status: status)
        _, (reserved, failed) = next(run_in_children([work], 1))
        assert found.fits == (failed is None)
        answers.add(found.fits)
        if found.fits:
            assert found.reserved_peak == reserved
        else:
            lines = [frame.line for frame in found.failure.stack if frame.filename == str(path)]
            assert (found.failure.size, lines[0]) == failed
    assert answers == {True, False}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_replayed_verdict_is_that_of_a_run(program, tmp_path, monkeypatch):
    check(*PROGRAMS[program], tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("requests", "least"),
    [
        # Bytes in use are enough: what is cached goes back when there is no room.
        ((30, -30, 40), 40),
        ((31, 30, -31, 40), 70),
        # The rest of a segment that is in use stays: all of what is reserved without limit.
        ((9, 8, -9, 40), 60),
    ],
)
def test_the_needed_memory_is_what_replays_fit_in(requests, least):
    events = [
        Event("alloc" if size > 0 else "free_completed", abs(size), abs(size) * MIB, 0, 0, 0)
        for size in requests
    ]
    history = AllocationHistory([DeviceHistory(0, EventLog(events), (), ())], [()])
    needed = needed_memory(SimpleNamespace(history=history), 0)
    assert least * MIB <= needed <= least * MIB * 513 // 512


@pytest.mark.programs
@pytest.mark.parametrize("program", WITH_TRANSFORMERS)
def test_a_replayed_verdict_is_that_of_a_run_of_transformers(program, tmp_path, monkeypatch):
    pytest.importorskip("transformers", reason="`make programs` has transformers")
    check(*WITH_TRANSFORMERS[program], tmp_path, monkeypatch)
