"""GPUs on which the same happens: properties that were read, and what functions of them decide."""

from __future__ import annotations

import torch

from pytorch_memlab.fitting.watched_gpu import Decision, runs_alike
from pytorch_memlab.simulation.hardware.decisions import has_capability, has_major
from pytorch_memlab.simulation.hardware.presets import PRESETS
from pytorch_memlab.simulation.ops.attention.efficient import tile_of

A100, L4, H100, T4 = (PRESETS[name] for name in ("a100", "l4", "h100", "t4"))
AMPERE = Decision(has_major, (8,), ())


def test_properties_that_were_read_have_to_be_equal():
    assert runs_alike(A100, L4, {"major"})
    assert not runs_alike(A100, L4, {"major", "minor"})
    assert runs_alike(A100, T4, ())


def test_decisions_have_to_be_equal_whatever_they_are():
    assert runs_alike(A100, H100, {AMPERE})
    assert not runs_alike(A100, T4, {AMPERE})
    assert runs_alike(T4, PRESETS["v100"], {AMPERE})
    assert not runs_alike(A100, H100, {AMPERE, "minor", Decision(has_capability, (9, 0), ())})


def test_the_keywords_of_a_decision_count():
    assert runs_alike(A100, H100, {Decision(has_major, (), (("least", 8),))})
    assert not runs_alike(A100, H100, {Decision(has_major, (8,), (("most", 8),))})


def test_a_gpu_that_cannot_decide_is_alike_to_none():
    """No kernel of memory-efficient attention takes so large a head in the memory of a T4."""
    unsupported = Decision(tile_of, (torch.float16, 2**20, False), ())
    assert not runs_alike(T4, A100, {unsupported})
    assert not runs_alike(A100, PRESETS["a100-40gb"], {unsupported})
