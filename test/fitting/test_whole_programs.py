"""The verdict is that of the whole program: compared with a run to its end, on the same GPU."""

from __future__ import annotations

import pytest
import torch

from pytorch_memlab import simulate
from pytorch_memlab.fitting.comparison import compare_gpus
from pytorch_memlab.fitting.target import ProgramTarget
from pytorch_memlab.fitting.trial import Settings
from pytorch_memlab.simulation.inspect import find_gpu

SMALL, LARGE = "100MiB", "200MiB"

HEAD = """
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

net = nn.Linear(512, 512).cuda()
optimizer = torch.optim.AdamW(net.parameters())
loader = DataLoader(TensorDataset(torch.randn(64, 512)), batch_size=8)
kept = []


def step(x):
    optimizer.zero_grad()
    net(x.cuda()).pow(2).mean().backward()
    optimizer.step()


def evaluate():
    return torch.zeros(100, 2**18, device="cuda").sum()


"""

FITS_THE_LARGE_ONE = {
    "evaluation behind a loop": "for (x,) in loader:\n    step(x)\nevaluate()\n",
    "a while loop": "n = 0\nwhile n < 40:\n    step(torch.randn(8, 512))\n    n += 1\nevaluate()\n",
    "a loop that is left by break": """
n = 0
while True:
    step(torch.randn(8, 512))
    n += 1
    if n == 40:
        break
evaluate()
""",
    "epochs": "for _ in range(30):\n    for (x,) in loader:\n        step(x)\n    evaluate()\n",
    "loops in functions": """
def train():
    for i, ((x,), _) in enumerate(zip(loader, range(100))):
        step(x)

def main():
    for epoch in range(30):
        train()
    evaluate()

main()
""",
    "a generator": """
def batches():
    for _ in range(40):
        yield torch.randn(8, 512)

for x in batches():
    step(x)
evaluate()
""",
    "an evaluation in every tenth step": """
for n in range(40):
    step(torch.randn(8, 512))
    if n % 10 == 9:
        evaluate()
""",
    "an exit behind the loop": """
for (x,) in loader:
    step(x)
torch.save(net.state_dict(), "net.pt")
evaluate()
sys.exit(0)
""",
    "two loops": """
for (x,) in loader:
    step(x)
optimizer = torch.optim.SGD(net.parameters(), momentum=0.9)
for n in range(20):
    step(torch.randn(8, 512))
evaluate()
""",
    "optimizers in turn": """
second = torch.optim.Adam([torch.zeros(9, device="cuda", requires_grad=True)])
for (x,) in loader:
    step(x)
    for one in (optimizer, second):
        one.step()
evaluate()
""",
    "a validation that keeps its outputs": """
for (x,) in loader:
    step(x)
for _ in range(25):
    kept.append(torch.zeros(4, 2**18, device="cuda"))
""",
    "steps that keep their results": """
for _ in range(30):
    step(torch.randn(8, 512))
    kept.append(torch.zeros(4, 2**18, device="cuda"))
""",
    "epochs that keep their results": """
for epoch in range(30):
    for (x,) in loader:
        step(x)
    kept.append(torch.zeros(4, 2**18, device="cuda"))
""",
    "a step in four that keeps its result": """
for n in range(120):
    step(torch.randn(8, 512))
    if n % 4 == 0:
        kept.append(torch.zeros(4, 2**18, device="cuda"))
""",
    "steps that keep their last thirty results": """
for n in range(60):
    step(torch.randn(8, 512))
    kept.append(torch.zeros(4, 2**18, device="cuda"))
    kept = kept[-30:]
""",
    "steps that keep something at first": """
for n in range(60):
    step(torch.randn(8, 512))
    if len(kept) < 9:
        kept.append(torch.zeros(12, 2**18, device="cuda"))
""",
}


@pytest.fixture
def verdicts_of(tmp_path):
    def of(body, *sizes, steps=None):
        path = tmp_path / "program.py"
        path.write_text(HEAD + body)
        gpus = [(size, find_gpu(size)) for size in sizes]
        settings = Settings(context=0, steps=steps)
        found = dict(compare_gpus(ProgramTarget(str(path)), gpus, settings))
        return [found[index] for index in range(len(gpus))]

    return of


def fits_in_truth(body, size):
    """True if the whole program fits, by running it."""
    variables = {"__name__": "__main__"}
    try:
        with simulate(size, compute=False, context=0):
            exec(compile(HEAD + body, "program.py", "exec"), variables)
    except torch.OutOfMemoryError:
        return False
    except SystemExit:
        return True
    return True


@pytest.mark.parametrize("name", FITS_THE_LARGE_ONE)
def test_the_whole_program_fits_the_large_gpu_alone(name, verdicts_of):
    body = FITS_THE_LARGE_ONE[name]
    assert [fits_in_truth(body, size) for size in (SMALL, LARGE)] == [False, True]
    small, large = verdicts_of(body, SMALL, LARGE)
    assert (small.answer, large.answer) == ("does not fit", "fits")


def test_a_branch_that_no_step_reached_is_named(verdicts_of):
    body = (
        "for n in range(200):\n    step(torch.randn(8, 512))\n    if n == 99:\n        evaluate()\n"
    )
    assert not fits_in_truth(body, SMALL)
    (found,) = verdicts_of(body, SMALL)
    assert (found.answer, found.trial.unreached) == ("so far", ("evaluate()",))


def test_a_branch_before_the_first_step_does_not_stand_for_a_later_one(verdicts_of):
    body = """
for n in range(90):
    if n % 40 == 0:
        evaluate()
    step(torch.randn(8, 512))
"""
    (found,) = verdicts_of(body, LARGE)
    assert (found.answer, found.trial.unreached) == ("so far", ("evaluate()",))


def test_a_branch_that_only_prints_is_not_missed(verdicts_of):
    body = "for n in range(90):\n    step(torch.randn(8, 512))\n    if n == 50:\n        print(n)\n"
    (found,) = verdicts_of(body, SMALL)
    assert found.answer == "fits"


def test_a_cache_that_doubles_does_not_settle(verdicts_of):
    body = """
cache = torch.zeros(2**18, device="cuda")
for n in range(1, 200):
    step(torch.randn(8, 512))
    if n * 2**18 > cache.numel():
        cache = torch.zeros(2 * cache.numel(), device="cuda")
"""
    assert not fits_in_truth(body, LARGE)
    (found,) = verdicts_of(body, LARGE)
    assert found.answer == "so far"


@pytest.mark.parametrize("steps", [200, 60], ids=["ended", "to its end"])
def test_the_step_of_the_truth_and_the_list_that_grows_are_named(steps, verdicts_of):
    body = f"""
for n in range(1, {steps}):
    step(torch.randn(8, 512))
    kept.append(torch.zeros(4, 2**18, device="cuda"))
"""
    (found,) = verdicts_of(body, LARGE)
    assert (found.answer, found.growth.repeated.holder) == ("does not fit", "kept")
    variables = {"__name__": "__main__"}
    with pytest.raises(torch.OutOfMemoryError), simulate(LARGE, compute=False, context=0):
        exec(compile(HEAD + body, "program.py", "exec"), variables)
    assert found.growth.last_step == variables["n"] + 1  # its optimizer has stepped


def test_the_peak_has_what_steps_leave_that_did_not_run(verdicts_of):
    body = """
for n in range(100):
    step(torch.randn(8, 512))
    kept.append(torch.zeros(4, 2**18, device="cuda"))
"""
    (found,) = verdicts_of(body, "1GiB")
    assert (found.answer, len(found.trial.step_peaks)) == ("fits", 24)
    with simulate("1GiB", compute=False, context=0):
        exec(compile(HEAD + body, "program.py", "exec"), {"__name__": "__main__"})
        truth = torch.cuda.max_memory_reserved()
    assert abs(found.reserved_peak - truth) <= 4 * 2**20  # a step leaves as much


def test_the_iteration_of_the_truth_is_named(verdicts_of):
    body = """
for n in range(1, 100):
    for (x,) in loader:
        step(x)
    kept.append(torch.zeros(4, 2**18, device="cuda"))
"""
    (found,) = verdicts_of(body, LARGE)
    variables = {"__name__": "__main__"}
    with pytest.raises(torch.OutOfMemoryError), simulate(LARGE, compute=False, context=0):
        exec(compile(HEAD + body, "program.py", "exec"), variables)
    assert (found.answer, found.growth.repeated.are_steps) == ("does not fit", False)
    assert abs(found.growth.last_step - variables["n"]) <= 1


def test_two_steps_are_too_few_to_repeat(verdicts_of):
    body = "for (x,) in loader:\n    step(x)\nevaluate()\n"
    assert [one.answer for one in verdicts_of(body, SMALL, LARGE, steps=2)] == [
        "does not fit",
        "so far",
    ]
    assert verdicts_of(body, LARGE, steps=3)[0].answer == "fits"


def test_an_error_behind_the_loop_is_no_verdict(verdicts_of):
    (found,) = verdicts_of("for (x,) in loader:\n    step(x)\nraise ValueError('no')\n", LARGE)
    assert found.answer == "unknown"
    assert found.trial.stopped.message == "ValueError: no"


def test_steps_outside_loops_run_to_the_end(verdicts_of):
    body = "list(map(step, [torch.randn(8, 512)] * 60))\nevaluate()\n"
    (found,) = verdicts_of(body, LARGE)
    assert found.answer == "so far"
    assert found.trial.unreached == ("evaluate()",)
