"""Some of the programs of ``make advice``: the right cause first, and its edit, applied, saves."""

from __future__ import annotations

import pytest

from benchmarks.advice import SOUND, patched, programs, rows
from pytorch_memlab.advice.catalogue import all_causes

QUICK = (
    "attention_before_the_loss",
    "kept_losses",
    "no_grad_in_a_class",
    "running_loss",
    "sound_training",
)


def test_the_first_remedy_names_the_fault_applies_and_saves_what_it_says():
    chosen = [one for one in programs() if one.name in QUICK]
    found = rows(chosen, 2, is_tried=False)
    assert [(row.name, row.expected, row.note) for row in found if not row.is_right] == []
    assert [row.first for row in found[:4]] == [
        "attention_matrices",
        "kept_graphs",
        "no_grad",
        "running_sum",
    ]
    assert all(row.applies and row.runs and row.promised > 0 for row in found[:4])
    # Untried bytes are a lower bound, which the edit reaches. A fused attention saves a sum for
    # each row in place of its matrix.
    assert [row.name for row in found[:4] if row.promised > row.saved] == [
        "attention_before_the_loss"
    ]


@pytest.mark.programs
@pytest.mark.parametrize("one", [pytest.param(one, id=one.name) for one in programs()])
def test_a_tried_remedy_keeps_its_promise(one):
    if one.missing:
        pytest.skip(f"{', '.join(one.missing)} is not installed")
    [row] = rows([one], 1, is_tried=True)
    assert row.is_right, row


def test_every_program_names_a_cause_of_the_catalogue():
    names = {type(cause).__module__.rpartition(".")[2] for cause in all_causes()}
    assert {one.cause for one in programs()} <= {*names, SOUND}
    assert len({one.name for one in programs()}) >= 20


def test_an_edit_of_other_lines_is_refused(tmp_path):
    diff = "--- a.py\n+++ a.py\n@@ -1,2 +1,2 @@\n x = 1\n-y = 2\n+y = 3\n"
    file, other = tmp_path / "a.py", tmp_path / "b.py"
    file.write_text("x = 1\ny = 2\nz = 4\n")
    other.write_text("x = 1\ny = 2\n")
    assert patched(file, diff) == "x = 1\ny = 3\nz = 4\n"
    assert patched(other, diff) == "x = 1\ny = 2\n"
    file.write_text("x = 1\ny = 5\n")
    with pytest.raises(ValueError, match="the edit does not apply: y = 2"):
        patched(file, diff)
