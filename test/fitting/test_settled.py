"""When a trial ends: the peak of its steps repeats, whatever their rhythm."""

from __future__ import annotations

import pytest
from fit_programs import LOOP, MIB, trial_of
from support.trials import run_trial

from pytorch_memlab.fitting.settled import MOST_STEPS, StepPeak, cycle_of
from pytorch_memlab.fitting.target import FunctionTarget
from pytorch_memlab.fitting.trial import Ending
from pytorch_memlab.simulation.hardware.presets import find_gpu


def peaks(*sizes, reserved=8):
    return [StepPeak((size,), (reserved,)) for size in sizes]


@pytest.mark.parametrize(
    ("sizes", "length"),
    [
        ((5,), 0),
        ((5, 5), 0),  # the second step is the first with an optimizer's state
        ((5, 7, 7), 1),
        ((5, 7, 8, 9), 0),
        ((5, 7, 6, 7, 6), 2),
        ((5, 7, 6, 6, 7, 6, 6), 1),
    ],
)
def test_a_cycle_repeats(sizes, length):
    assert cycle_of(peaks(*sizes)) == length


def test_a_step_that_took_more_memory_from_the_gpu_repeats_none():
    assert cycle_of([*peaks(5, 7), *peaks(7, reserved=10)]) == 0


def test_a_training_loop_ends_after_its_third_step(tmp_path):
    trial = trial_of(LOOP, tmp_path)
    assert trial.ending is Ending.SETTLED
    # Weight and gradient, and from the first step on two states; 16 bytes are the step counter's
    # on the CPU, so none here. A sum and its gradient have 4 bytes each.
    first, second, third = (one.requested[0] for one in trial.step_peaks)
    assert first >= 16 * MIB
    assert second == third


@pytest.mark.parametrize(("steps", "ending"), [(2, Ending.STEPS), (5, Ending.SETTLED)])
def test_a_number_of_steps_is_kept(steps, ending, tmp_path):
    trial = trial_of(LOOP, tmp_path, steps=steps)
    assert trial.ending is ending
    assert len(trial.step_peaks) == steps


def test_a_trial_goes_on_to_a_step(tmp_path):
    trial = trial_of(LOOP, tmp_path, least_steps=5)
    assert (trial.ending, len(trial.step_peaks)) == (Ending.SETTLED, 5)
    text = f"{LOOP}        kept = torch.zeros(2**20 * (1 + len(trials)), device='cuda')\n"
    text += "        trials.append(kept)\n"
    text = text.replace("import torch", "import torch\n    trials = []")
    trial = trial_of(text, tmp_path, least_steps=6, most_steps=4)
    assert (trial.ending, len(trial.step_peaks)) == (Ending.UNSETTLED, 6)


@pytest.mark.parametrize(
    ("test", "awaits_branches", "steps", "unreached"),
    [
        ("step == 50", True, MOST_STEPS, ("weight.exp()",)),
        ("step == 50", False, 3, ("weight.exp()",)),
        ("step % 2 == 0", False, 4, ()),  # the first step takes it, and the third
    ],
)
def test_a_trial_may_end_before_a_branch_that_no_step_took(
    test, awaits_branches, steps, unreached, tmp_path
):
    text = LOOP.replace("for _ in", "for step in")
    text += f"        if {test}:\n            weight.exp()\n"
    trial = trial_of(text, tmp_path, awaits_branches=awaits_branches)
    assert trial.ending is Ending.SETTLED
    assert (len(trial.step_peaks), trial.unreached) == (steps, unreached)


CRITIC = """
    import torch

    critic, generator = (torch.zeros(2**20, device="cuda", requires_grad=True) for _ in "cg")
    of_critic = torch.optim.SGD([critic])
    of_generator = torch.optim.Adam([generator])
    for _ in range(20):
        for _ in range(5):
            critic.sum().backward()
            of_critic.step()
            of_critic.zero_grad()
        (generator * 2).sum().backward()
        of_generator.step()
        of_generator.zero_grad()
"""


def test_no_optimizer_is_left_out_whose_turn_comes_late(tmp_path):
    """Five equal steps of one optimizer come before the first of the other."""
    trial = trial_of(CRITIC, tmp_path)
    assert trial.ending is Ending.SETTLED
    assert len(trial.step_peaks) >= 6 + 1
    assert max(one.requested[0] for one in trial.step_peaks) > 16 * MIB


LEAK = """
    import torch

    weight = torch.zeros(2**20, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight])
    losses = []
    for _ in range(1000):
        loss = (weight * 2).pow(2).sum()
        losses.append(loss)
        loss.backward(retain_graph=True)
        optimizer.step()
"""


def test_a_peak_that_rises_with_every_step_is_given_up(tmp_path):
    trial = trial_of(LEAK, tmp_path)
    assert trial.ending is Ending.UNSETTLED
    assert len(trial.step_peaks) == MOST_STEPS
    requested = [one.requested[0] for one in trial.step_peaks]
    assert requested == sorted(set(requested))


def test_a_program_without_an_optimizer_runs_to_its_end(tmp_path):
    text = """
        import torch
        kept = [torch.zeros(2**18, device="cuda") for _ in range(30)]
    """
    trial = trial_of(text, tmp_path)
    assert trial.ending is Ending.FINISHED
    assert trial.step_peaks == ()


def test_a_program_that_catches_every_exit_is_ended_all_the_same(tmp_path):
    text = """
        import torch

        weight = torch.zeros(2**20, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight])
        for _ in range(100):
            try:
                weight.sum().backward()
                optimizer.step()
            except BaseException:
                kept = torch.zeros(2**28, device="cuda")
    """
    trial = trial_of(text, tmp_path)
    assert trial.ending is Ending.SETTLED
    assert max(one.requested[0] for one in trial.step_peaks) < 64 * MIB
    assert all(event.size < 64 * MIB for event in trial.history.devices[0].events)


def test_a_function_is_called_until_its_peak_repeats_and_keeps_nothing():
    import torch

    def step():
        weight = torch.zeros(2**20, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], momentum=0.9)
        weight.sum().backward()
        optimizer.step()

    trial = run_trial(FunctionTarget(step), find_gpu("a100"))
    assert trial.ending is Ending.SETTLED
    assert len(trial.step_peaks) == 3
    assert len({one.requested for one in trial.step_peaks}) == 1


def test_a_function_without_an_optimizer_has_a_step_for_each_call():
    import torch

    cache = []

    def step():
        cache.append(torch.zeros(2**18, device="cuda"))
        del cache[:-4]

    trial = run_trial(FunctionTarget(step), find_gpu("a100"))
    assert trial.ending is Ending.SETTLED
    assert [one.requested[0] // MIB for one in trial.step_peaks] == [1, 2, 3, 4, 5, 5, 5, 5]
    assert cache == []
