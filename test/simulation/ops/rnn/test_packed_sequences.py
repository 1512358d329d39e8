"""Temporaries of packed sequences."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import events, randn

from pytorch_memlab.simulation import simulate

pytestmark = pytest.mark.usefixtures("no_values_in_dry_runs")


@computed_or_dry
def test_runs_of_steps_are_copied_before_they_are_joined(compute):
    def pack(x):
        return torch.nn.utils.rnn.pack_padded_sequence(x, [5, 3, 3, 1])

    found = events(lambda x: pack(x).data, lambda: randn(5, 4, 6), compute=compute)
    # The first run is one step, and lies side by side. A C++ vector frees its first element first.
    copies = [2 * 3 * 6 * 4, 2 * 1 * 6 * 4]
    assert found == [*copies, (4 + 2 * 3 + 2) * 6 * 4, *(-nbytes for nbytes in copies)]


@computed_or_dry
def test_batches_that_come_first_are_copied_whole(compute):
    def pack(x):
        sequence = torch.nn.utils.rnn.pack_padded_sequence(x, [5, 5], batch_first=True)
        return sequence.data

    size = 5 * 2 * 6 * 4
    assert events(pack, lambda: randn(2, 5, 6), compute=compute) == [size, size, -size]
    assert events(pack, lambda: randn(5, 2, 6).transpose(0, 1), compute=compute) == [size]


def test_lengths_that_a_dry_run_does_not_know_are_all_the_longest():
    with simulate("a100", compute=False) as machine:
        lengths = randn(4).long().cpu()
        packed = torch.nn.utils.rnn.pack_padded_sequence(randn(5, 4, 6), lengths)
        assert packed.data.shape == (5 * 4, 6)
        reads = [read for read in machine.data_dependent_reads if "pack" in read.op]
    assert [(read.name, read.assumption, read.count) for read in reads] == [
        ("pack_padded_sequence", "every length the longest", 1)
    ]
