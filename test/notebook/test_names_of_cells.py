"""Lines of cells have the name of the cell; the name of its file says nothing."""

from __future__ import annotations

import pytest

STEP = """\
import torch, pytorch_memlab
def step():
    return torch.ones(2**22, device="cuda")
"""


@pytest.mark.knows_simulation("a simulation records requests by itself, and dry runs are simulated")
def test_what_holds_the_peak(run, capsys):
    run(STEP)
    run(
        "with pytorch_memlab.simulate('64MiB'), pytorch_memlab.LineProfiler(step) as profiler:\n"
        "    kept = step()\n"
        "print(repr(profiler.peak_holders()))"
    )
    out = capsys.readouterr().out
    assert "in 1 block; most by In[1]:3 (16.0 MiB) and as " in out


@pytest.mark.knows_simulation("a simulation records requests by itself, and dry runs are simulated")
def test_the_line_that_does_not_fit(run, capsys):
    run(STEP)
    run("print(repr(pytorch_memlab.fit(step, gpus=['8MiB'])))")

    out = capsys.readouterr().out
    assert "\nout of memory at In[1]:3 in step: return torch.ones(2**22, device=" in out


def test_what_is_saved_has_them_still(run, shell, tmp_path):
    from pytorch_memlab import load

    run(STEP)
    path = tmp_path / "step.json"
    run(
        "with pytorch_memlab.simulate('64MiB'):\n"
        "    with pytorch_memlab.LineProfiler(step, history=True) as profiler:\n"
        "        kept = step()\n"
        f"profiler.save({str(path)!r})"
    )
    live = shell.user_ns["profiler"].peak_holders().to_dataframe()
    assert list(live.file) == ["In[1]"]
    loaded = load(path)
    assert [info.filename for info in loaded.recorded().functions] == ["In[1]"]
    assert loaded.peak_holders().to_dataframe().equals(live)
    assert "  In[1]:3  step" in str(loaded.peak_holders())
    frames = {frame for stack in loaded.history().stacks for frame in stack}
    assert ("In[1]", 3, "step") in frames


@pytest.mark.knows_simulation("a simulation records requests by itself, and dry runs are simulated")
def test_reads_of_a_dry_run(run, capsys):
    run(STEP)
    run("def reads(): return step().sum().item()")
    run("print(repr(pytorch_memlab.fit(reads, gpus=['1GiB'], steps=1)))")
    assert "dry run: Tensor.item at In[2]:1 (once, assumed 0)" in capsys.readouterr().out
