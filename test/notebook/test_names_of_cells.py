"""Lines of cells have the name of the cell; the name of its file says nothing."""

from __future__ import annotations

STEP = """\
import torch, pytorch_memlab
def step():
    return torch.ones(2**22, device="cuda")
"""


def test_what_holds_the_peak(run, capsys):
    run(STEP)
    run(
        "with pytorch_memlab.simulate('64MiB'), pytorch_memlab.LineProfiler(step) as profiler:\n"
        "    kept = step()\n"
        "print(profiler.peak_holders())"
    )
    out = capsys.readouterr().out
    assert "in 1 block; most by In[1]:3 (16.0 MiB) and as " in out


def test_the_line_that_does_not_fit(run, capsys):
    run(STEP)
    run("print(repr(pytorch_memlab.fit(step, gpus=['8MiB'])))")

    out = capsys.readouterr().out
    assert "\nout of memory at In[1]:3 in step: return torch.ones(2**22, device=" in out
