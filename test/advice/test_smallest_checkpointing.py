"""The fewest blocks to checkpoint, against all sets of blocks; and what is computed again."""

from __future__ import annotations

from itertools import combinations

import pytest
from support.remedied_programs import LARGE, edited, run, written

from pytorch_memlab.advice.block_survey import BlockSurvey
from pytorch_memlab.advice.causes.activations import Checkpointing
from pytorch_memlab.advice.smallest_checkpointing import smallest_checkpointing
from pytorch_memlab.fitting.trial import Ending, Trial
from pytorch_memlab.fitting.verdict import Verdict

UNEQUAL = """\
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.up = nn.Linear(256, 256 * factor)
        self.down = nn.Linear(256 * factor, 256)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer(factor) for factor in (1, 6, 2, 4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(2):
    net(torch.randn(4096, 256, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
NAMES = tuple(f"net.layers[{number}]" for number in range(4))


class OnOneGPU:
    """Verdicts of a program on a GPU of some bytes, from runs in this process."""

    def __init__(self, path, capacity):
        self.path, self.capacity = path, capacity
        self.runs = 0

    def verdicts(self, changes, ended):
        return [self.verdict(change) for change in changes]

    def verdict(self, change):
        self.runs += 1
        found = run(self.path, [change])
        return Verdict(
            name="a GPU",
            gpu=LARGE,
            trial=Trial(gpu=LARGE, ending=Ending.FINISHED, findings=found.findings),
            fits=found.reserved <= self.capacity,
            device=0,
            reserved_peak=found.reserved,
            active_peak=found.active,
            taken=0,
        )


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return written(tmp_path_factory.mktemp("unequal"), UNEQUAL)


@pytest.fixture(scope="module")
def all_peaks(path):
    """The reserved peak with each set of blocks."""
    sets = [each for count in range(1, 5) for each in combinations(NAMES, count)]
    return {(): run(path).reserved} | {
        each: run(path, [Checkpointing(each)]).reserved for each in sets
    }


def test_no_smaller_set_of_blocks_fits(path, all_peaks):
    survey = run(path, [BlockSurvey()]).finding
    lowest, highest = all_peaks[NAMES], all_peaks[()]
    assert lowest < highest
    sizes = set()
    for capacity in sorted(set(all_peaks.values())):
        if not lowest <= capacity < highest:
            continue
        gpu = OnOneGPU(path, capacity)
        found = smallest_checkpointing(gpu.verdict(Checkpointing()), survey, gpu.verdicts)
        fewest = min(len(blocks) for blocks, peak in all_peaks.items() if peak <= capacity)
        assert len(found.finding.blocks) == fewest
        assert found.verdict.reserved_peak == all_peaks[found.finding.blocks] <= capacity
        assert found.runs == gpu.runs - 1
        sizes.add(fewest)
    assert sizes == {1, 2}


def test_where_all_blocks_are_not_enough_the_search_runs_nothing(path, all_peaks):
    gpu = OnOneGPU(path, all_peaks[NAMES] - 1)
    found = smallest_checkpointing(gpu.verdict(Checkpointing()), None, gpu.verdicts)
    assert (found.verdict.fits, found.finding.blocks, found.runs) == (False, NAMES, 0)


def test_the_code_of_some_blocks_has_the_peak_that_was_promised(path, all_peaks):
    some = (NAMES[1], NAMES[2])
    promised = run(path, [Checkpointing(some)])
    assert promised.finding.blocks == some
    assert "for block in net.layers[1:3]:" in promised.finding.edits[0].lines
    assert run(edited(path, promised.finding.edits)).reserved == all_peaks[some]


def test_blocks_keep_their_activations_and_a_step_computes_them_again(path):
    survey = run(path, [BlockSurvey()]).finding
    rows, width = 4096, 256
    # The result of relu, which both relu and the second product save; the inputs are results of
    # the block before, except for the first.
    kept = [rows * width * factor * 4 for factor in (1, 6, 2, 4)]
    assert list(survey.kept) == list(NAMES)
    assert list(survey.kept.values()) == kept
    products = [2 * rows * width * width * factor for factor in (1, 6, 2, 4)]
    # Forward: two products a block. Backward: four, but the first input needs no gradient.
    assert survey.flops == 6 * sum(products) - products[0]
    # The second product saves nothing that is not known by then, so it is not computed again.
    again = run(path, [Checkpointing(NAMES[:2])]).finding
    assert again.flops == products[0] + products[1]


AVERAGE = """\
average = Net().cuda()
with torch.no_grad():
    average(torch.ones(1, 256).cuda())
"""
AVERAGED = UNEQUAL.replace("optimizer = ", f"{AVERAGE}optimizer = ")


def test_a_model_that_is_never_trained_stays_as_it_is(tmp_path):
    promised = run(written(tmp_path, AVERAGED), [Checkpointing()])
    assert promised.finding.candidates == promised.finding.blocks == NAMES
    assert len(promised.finding.edits) == 1
    found = run(edited(tmp_path / "train.py", promised.finding.edits))
    assert found.peaks == promised.peaks
