"""Memory that grows in loops within loops: the peak of the whole program, to the byte."""

from __future__ import annotations

import pytest
import torch

from pytorch_memlab import simulate
from pytorch_memlab.fitting.target import ProgramTarget
from pytorch_memlab.fitting.trial import Settings, TrialRequest, run
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
