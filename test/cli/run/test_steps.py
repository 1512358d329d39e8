"""``run --steps`` and ``--warmup``: which optimizer steps are measured, and how a run ends."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from support.python_process import run_python

from pytorch_memlab.cli.main import main

ROOT = Path(__file__).parents[3]

TRAIN = """\
import torch

def step(number):
    kept.append(torch.ones(256 << number, device="cuda"))
    optimizer.step()
    done.append(number)

kept, done = [], []
weight = torch.zeros(1, device="cuda", requires_grad=True)
weight.grad = torch.zeros_like(weight)
optimizer = torch.optim.SGD([weight])
try:
    for number in range(6):
        step(number)
finally:
    print(done)
"""

SIMULATING = (
    "pytorch-memlab: simulating NVIDIA H100 80GB HBM3 (this machine has no CUDA GPU; choose another"
    " with --gpu NAME or --gpu SIZE)\n"
)


@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_only_the_steps_after_the_warmup_are_measured(write, capsys):
    code = main(
        ["run", "--warmup", "2", "--steps", "2", "-f", "step", "-c", "hits,delta", write(TRAIN)]
    )

    out, err = capsys.readouterr()
    assert code == 0
    # What follows the last step's optimizer.step() does not run: the two are 4 KiB and 8 KiB.
    assert out == (
        "[0, 1, 2]\n"
        "## step\n"
        "\n"
        "hits delta line  code\n"
        "   2 0.00B    3  def step(number):\n"
        '   2 6.00K    4      kept.append(torch.ones(256 << number, device="cuda"))\n'
        "   2 0.00B    5      optimizer.step()\n"
        "   2 0.00B    6      done.append(number)\n"
        "\n"
        "peak 2.0 MiB reserved + 601.0 MiB context of 79.19 GiB: fits, 78.60 GiB free\n"
        "simulated GPU: NVIDIA H100 80GB HBM3 (cuda:0)\n"
    )
    assert err == (
        f"{SIMULATING}pytorch-memlab: ending the program after 4 optimizer steps (--warmup 2"
        " --steps 2)\n"
    )


def test_decorated_functions_wait_for_the_warmup_too(write, capsys):
    text = f"from pytorch_memlab import profile\n{TRAIN}".replace("def step", "@profile\ndef step")

    main(["run", "--warmup", "3", "--steps", "1", "-c", "hits,delta", write(text)])

    assert "   1 8.00K    6      kept.append" in capsys.readouterr().out


def test_the_end_after_steps_is_that_of_a_program_that_finished(write):
    text = "import atexit\natexit.register(print, 'bye')\n" + TRAIN

    done = run_python(
        ["-m", "pytorch_memlab", "run", "--steps", "1", "-c", "hits", write(text)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    assert done.returncode == 0
    assert done.stdout.startswith("[]\nbye\n## step\n")
    assert done.stderr == (
        f"{SIMULATING}pytorch-memlab: ending the program after 1 optimizer step (--steps 1)\n"
    )


def test_a_program_that_handles_errors_is_ended_all_the_same(write, capsys):
    text = TRAIN.replace(
        "        step(number)", "        try: step(number)\n        except Exception: pass"
    )

    main(["run", "--steps", "2", "-f", "step", "-c", "hits", write(text)])

    out, err = capsys.readouterr()
    assert out.startswith("[0]\n")
    assert err.count("ending the program") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--steps", "9"], "after 6 optimizer steps, before --steps 9 was over: 6 optimizer steps"),
        (["--warmup", "6"], "after 6 optimizer steps, before --warmup 6 was over: 0 optimizer"),
        (
            ["--warmup", "5", "--steps", "4"],
            "after 6 optimizer steps, before --warmup 5 --steps 4 was over: 1 optimizer step",
        ),
    ],
)
def test_a_program_that_ends_before_is_said(options, said, write, capsys):
    main(["run", *options, "-f", "step", write(TRAIN)])

    assert f"pytorch-memlab: the program ended {said}" in capsys.readouterr().err


NESTED = """\
import torch

class Outer(torch.optim.SGD):
    def __init__(self, inner):
        super().__init__([weight])
        self.inner = inner

    def step(self):
        self.inner.step()
        print("stepped")

weight = torch.zeros(1, requires_grad=True)
weight.grad = torch.zeros_like(weight)
outer = Outer(torch.optim.SGD([weight]))
outer.step()
outer.step()
"""


def test_an_optimizer_within_an_optimizer_is_one_step(write, capsys):
    main(["run", "--steps", "1", "-c", "hits", "-f", "Outer.step", write(NESTED)])

    assert capsys.readouterr().out.startswith("stepped\n## Outer.step\n")


def test_no_hook_and_nothing_switched_off_is_left(write, capsys):
    from torch.optim import optimizer

    from pytorch_memlab.line_profiler.profile import global_line_profiler

    main(["run", "--warmup", "1", "--steps", "1", "-f", "step", write(TRAIN)])

    assert not optimizer._global_optimizer_post_hooks
    assert not global_line_profiler._is_off


@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_steps_in_a_thread_end_the_thread_without_a_word(write, capsys, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)  # pytest has its own
    loop = TRAIN[TRAIN.index("try:") :]
    body = "".join(f"    {line}\n" for line in loop.splitlines())
    text = f"import threading\n{TRAIN[: TRAIN.index('try:')]}def train():\n{body}"
    thread = "t = threading.Thread(target=train)\nt.start()\nt.join()\nprint('main')\n"

    main(["run", "--steps", "2", "-f", "step", "-c", "hits", write(text + thread)])

    out, err = capsys.readouterr()
    assert out.startswith("[0]\nmain\n## step\n")
    assert err == (
        f"{SIMULATING}pytorch-memlab: ending the program after 2 optimizer steps (--steps 2)\n"
    )
