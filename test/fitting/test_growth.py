"""Programs whose memory grows with every step: ``fit`` names the step that fails."""

from __future__ import annotations

import textwrap

import pytest
import torch
from support.trials import run_trial

from pytorch_memlab import simulate
from pytorch_memlab.fitting.growth import rise_to_the_end
from pytorch_memlab.fitting.settled import Repeated
from pytorch_memlab.fitting.target import ProgramTarget
from pytorch_memlab.fitting.trial import Settings
from pytorch_memlab.fitting.verdict import rise_of_peak, verdict
from pytorch_memlab.history.holders import innermost_of_user
from pytorch_memlab.history.model import AllocationHistory, DeviceHistory, EventLog
from pytorch_memlab.simulation.inspect import GPU, find_gpu

MIB = 2**20

HEAD = """
import torch
from torch import nn

net = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.AdamW(net.parameters())
kept = []
steps = 0
while True:
    optimizer.zero_grad()
    loss = net(torch.randn(512, 512, device="cuda")).pow(2).mean()
    loss.backward()
"""

GROWING = {
    "graphs": "    kept.append(net(torch.randn(512, 512, device='cuda')).mean())\n",
    "small results": "    kept.append(torch.zeros(70_000, device='cuda'))\n",
    "large results": "    kept.append(torch.zeros(9, 2**20, device='cuda'))\n",
    "results that replace half of the older ones": (
        "    kept.extend(torch.zeros(2, 2**20, device='cuda').clone() for _ in range(2))\n"
        "    kept.pop()\n"
    ),
    "a copy that replaces the last one": (
        "    kept.append(torch.zeros(2**19, device='cuda'))\n    last = kept[-1] * 2\n"
    ),
}


def program(body: str) -> str:
    return HEAD + body + "    optimizer.step()\n    steps += 1\n"


def step_that_fails(text: str, gpu: GPU) -> int:
    """The number of the step in which the program runs out of memory, by running it."""
    variables = {"__name__": "__main__"}
    with pytest.raises(torch.OutOfMemoryError), simulate(gpu, compute=False, context=0):
        exec(compile(text, "program.py", "exec"), variables)
    return variables["steps"] + 1


@pytest.fixture
def verdict_on(tmp_path):
    def of(text: str, size: str):
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(text))
        gpu = find_gpu(size)
        trial = run_trial(ProgramTarget(str(path)), gpu, context=0)
        return verdict(trial, gpu, size, Settings(context=0))

    return of


@pytest.mark.parametrize("name", GROWING)
def test_the_step_that_finds_no_room_is_named(name, verdict_on):
    text = program(GROWING[name])
    size = {"large results": "2GiB", "small results": "160MiB"}.get(name, "400MiB")
    found = verdict_on(text, size)
    assert found.fits
    assert found.growth is not None
    truth = step_that_fails(text, find_gpu(size))
    assert truth > len(found.trial.step_peaks)
    assert abs(found.growth.last_step - truth) <= 1
    line = text.splitlines()[innermost_of_user(found.growth.stack).line - 1]
    assert "kept" in line


def test_the_bytes_of_a_step_are_those_that_it_leaves(verdict_on):
    found = verdict_on(program(GROWING["large results"]), "2GiB")
    assert found.growth.nbytes == 36 * MIB


@pytest.mark.parametrize("after", ["", "del kept\nnet(torch.randn(2**16, 512, device='cuda'))\n"])
def test_the_peak_of_the_whole_loop_is_known_from_its_first_steps(after, verdict_on):
    text = program(GROWING["small results"]).replace("while True", "for _ in range(60)") + after
    found = verdict_on(text, "4GiB")
    assert len(found.trial.step_peaks) < 60
    with simulate("4GiB", compute=False, context=0):
        exec(compile(text, "program.py", "exec"), {"__name__": "__main__"})
        whole = torch.cuda.max_memory_allocated()
    rise = rise_of_peak(found.trial, found.device)
    assert rise == (0 if after else 36 * 280_064)  # 70,000 numbers in blocks of 512 bytes
    assert found.active_peak + rise == whole


def test_a_program_that_frees_what_it_kept_does_not_grow(verdict_on):
    body = "    kept.append(torch.zeros(2**20, device='cuda'))\n    kept = kept[-2:]\n"
    found = verdict_on(program(body), "1GiB")
    assert (found.fits, found.growth) == (True, None)


def test_steps_that_take_turns_are_repeated_together(verdict_on):
    text = program("    kept.append(torch.zeros(2**18 * (steps % 3 + 1), device='cuda'))\n")
    found = verdict_on(text, "400MiB")
    assert (found.growth.nbytes, found.growth.cycle) == (6 * MIB, 3)
    assert abs(found.growth.last_step - step_that_fails(text, find_gpu("400MiB"))) <= 1


def test_steps_that_differ_are_not_repeated(verdict_on):
    body = "    kept.append(torch.zeros(2**18 + 2**14 * steps, device='cuda'))\n"
    found = verdict_on(program(body), "2GiB")
    assert (found.fits, found.growth, found.answer) == (True, None, "so far")


def test_a_loop_that_is_highest_at_its_first_event_rises_by_all_that_did_not_run():
    log, ends = EventLog(), []
    for step in range(6):
        for action, address, size in (
            ("alloc", 2**20, 4096),
            ("free_completed", 2**20, 4096),
            ("alloc", 512 * step, 512),  # which stays
        ):
            log.append(action, address, size, 0, len(log), 1)
        ends.append(len(log) - 1)
    history = AllocationHistory([DeviceHistory(0, log, ())], [(), ()])
    loop = Repeated(tuple(ends), total=9, skipped=3)
    assert rise_to_the_end(history, 0, [loop]) == 3 * 512
