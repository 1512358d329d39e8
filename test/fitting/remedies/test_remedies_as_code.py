"""Each remedy, against the program into which a person writes what the remedy says."""

from __future__ import annotations

import pytest
from remedied_programs import (
    ADVERSARIAL,
    CONVOLUTIONS,
    LANGUAGE_MODEL,
    WIDE,
    edited,
    run,
    written,
)

from pytorch_memlab.fitting.remedies.catalogue import chosen
from pytorch_memlab.fitting.remedies.remedy import Outcome
from pytorch_memlab.fitting.remedies.sharding import Sharding

PROGRAMS = {"lm": LANGUAGE_MODEL, "cnn": CONVOLUTIONS, "gan": ADVERSARIAL, "wide": WIDE}

_UNCHANGED = {}


def unchanged(program, path):
    """The run of a program as it is, which several tests compare with."""
    if program not in _UNCHANGED:
        _UNCHANGED[program] = run(path)
    return _UNCHANGED[program]


@pytest.mark.parametrize(
    ("program", "name", "saves"),
    [
        ("lm", "set_to_none", True),
        ("wide", "fused", True),
        ("wide", "for_loop", True),
        ("gan", "fused", False),
        ("lm", "autocast_bf16", True),
        ("cnn", "autocast_bf16", True),
        ("gan", "autocast_bf16", True),
        ("lm", "checkpoint", True),
        ("cnn", "checkpoint", True),
        ("gan", "checkpoint", True),
        ("lm", "shard=4", True),
        ("cnn", "shard=2", True),
        ("gan", "shard=2", True),
        ("wide", "shard=2", True),
    ],
)
def test_the_program_with_the_remedy_written_into_it_has_the_peak_that_was_promised(
    tmp_path, program, name, saves
):
    path = written(tmp_path, PROGRAMS[program])
    (remedy,) = chosen([name])
    promised = run(path, [remedy])
    assert promised.finding.outcome is Outcome.APPLIED
    assert promised.finding.edits
    environment = remedy.environment() if isinstance(remedy, Sharding) else {}
    found = run(edited(path, promised.finding.edits), environment=environment)
    assert found.peaks == promised.peaks
    before = unchanged(program, path)
    assert found.peaks != before.peaks
    assert (found.active < before.active) == saves
