"""Memory that grows in loops within loops: the peak of the whole program, to the byte."""

from __future__ import annotations

import pytest
import torch

from pytorch_memlab import simulate
from pytorch_memlab.fitting.target import ProgramTarget
from pytorch_memlab.fitting.trial import Settings, TrialRequest
from pytorch_memlab.fitting.trial_run import run
from pytorch_memlab.fitting.verdict import rise_of_peak, verdict
from pytorch_memlab.simulation.inspect import find_gpu

PROGRAM = """
import torch

weight = torch.nn.Parameter(torch.zeros(1 << 18, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
kept = []
for epoch in range({epochs}):
    {begin}
    for step in range({steps}):
        weight.square().sum().backward()
        if step % {every} == {every} - 1:
            optimizer.step()
            optimizer.zero_grad()
            kept.append(torch.zeros(1 << 18, device="cuda"))
"""


@pytest.mark.parametrize(
    ("epochs", "steps", "begin", "every", "total"),
    [
        (10, 50, "", 1, 500),  # each epoch ends early, and so do the epochs
        (4, 10, "", 1, 40),  # the last epoch runs whole
        (10, 50, "kept = []", 1, 50),
        (3, 14, "kept.clear()", 1, 14),
        (4, 60, "", 2, 120),  # a step every second iteration
    ],
)
def test_the_peak_counts_each_step_once(tmp_path, epochs, steps, begin, every, total):
    text = PROGRAM.format(epochs=epochs, steps=steps, begin=begin, every=every)
    script = tmp_path / "script.py"
    script.write_text(text)
    gpu, settings = find_gpu("4GiB"), Settings(context=0)
    trial = run(TrialRequest(ProgramTarget(str(script)), gpu, settings))
    result = verdict(trial, gpu, "", settings)
    rise = rise_of_peak(trial, result.device)
    with simulate("4GiB", compute=False, context=0):
        exec(compile(text, str(script), "exec"), {"__name__": "__main__"})
        peak = torch.cuda.max_memory_allocated()

    assert rise is not None
    assert result.active_peak + rise == peak
    assert peak >= total << 20
    whole, half = (
        verdict(trial, find_gpu(f"{size}"), "", settings)
        for size in (result.reserved_peak, result.reserved_peak // 2)
    )
    assert whole.answer == "fits"
    assert half.answer != "fits"


WARMS_UP = """
import torch

weight = torch.nn.Parameter(torch.zeros(1 << 18, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
kept = []
for step in range({steps}):
    kept.append(torch.zeros(1 << 16, device="cuda"))
    if step > {first} and step % {every} == 0:
        weight.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("steps", "first", "every"),
    [(500, 16, 10), (400, 90, 5), (300, 100, 1)],  # such as until a replay memory is filled
)
def test_a_first_step_that_comes_late_is_no_part_of_the_interval(tmp_path, steps, first, every):
    text = WARMS_UP.format(steps=steps, first=first, every=every)
    script = tmp_path / "script.py"
    script.write_text(text)
    settings = Settings(context=0)
    trial = run(TrialRequest(ProgramTarget(str(script)), find_gpu("4GiB"), settings))
    result = verdict(trial, find_gpu("4GiB"), "", settings)
    rise = rise_of_peak(trial, result.device)
    with simulate("4GiB", compute=False, context=0):
        exec(compile(text, str(script), "exec"), {"__name__": "__main__"})
        peak = torch.cuda.max_memory_allocated()

    trained = sum(step > first and step % every == 0 for step in range(steps))
    [loop] = [one for one in trial.repeated if one.are_steps]
    assert loop.total == trained
    assert rise is not None
    assert result.active_peak + rise == peak
