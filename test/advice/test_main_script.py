"""``explain_oom`` in a script on simulated GPUs tries remedies before it names them."""

from __future__ import annotations

import re

import pytest
from support.python_process import run_python

SCRIPT = """\
import sys
import torch
from pytorch_memlab import explain_oom, simulate
from pytorch_memlab.advice import trials

trials._LEAST_SECONDS = trials.MOST_SECONDS = 250.0  # other tests may run beside it


def main():
    layers = [torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)]
    net = torch.nn.Sequential(*layers).cuda()
    losses = []
    for step in range(60):
        loss = net(torch.randn(512, 256, device="cuda")).square().mean()
        losses.append(loss)
    open("losses.txt", "w").write(str(sum(one.item() for one in losses)))


if sys.argv[1:] == ["handled"]:
    try:
        with simulate("64MiB"), explain_oom():
            main()
    except torch.OutOfMemoryError:
        print("handled")
elif sys.argv[1:] == ["outside"]:
    with explain_oom(), simulate("64MiB"):
        main()
else:
    with simulate("64MiB"), explain_oom():
        main()
"""


def run(folder, argument):
    (folder / "script.py").write_text(SCRIPT)
    return run_python(["script.py", argument], cwd=folder)


@pytest.mark.parametrize("argument", ["inside", "outside"])
def test_the_script_runs_again_with_each_remedy(tmp_path, argument):
    done = run(tmp_path, argument)
    assert done.returncode == 1
    assert done.stdout == ""
    report = done.stderr.partition("\n\n")[2]
    assert "what helps, the most likely cause first\n" in report
    tried = re.findall(r"tried: peak (\S+) MiB -> (\S+) MiB, runs to its end", report)
    assert tried
    assert all(float(before) > 64 > float(after) for before, after in tried)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["script.py"]


def test_an_error_that_the_script_handles_is_not_tried(tmp_path):
    done = run(tmp_path, "handled")
    assert (done.returncode, done.stdout) == (0, "handled\n")
    assert "what helps, the most likely cause first (not tried)" in done.stderr
