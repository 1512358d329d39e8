"""The text of a recording beside its simulation: how far the peaks differ."""

from __future__ import annotations

from dataclasses import replace

from pytorch_memlab.history.recording_comparison import Peaks, RequestComparison
from pytorch_memlab.profiles.verification import Verification
from pytorch_memlab.render import verification as verification_text

MIB = 2**20
EQUAL = RequestComparison(0, 9, 9, (), Peaks(512, 4 * MIB), Peaks(512, 4 * MIB), ())
TEXT = """\
run.pickle, beside the program simulated with values on A100

cuda:0: 9 of 9 allocations and frees are equal, in order
"""


def differences(recorded: Peaks, simulated: Peaks) -> list[str]:
    """The last column of the table."""
    differing = replace(EQUAL, recorded=recorded, simulated=simulated)
    text = verification_text.text(Verification("run.pickle", "A100", (differing,), {}, False))
    assert text.startswith(TEXT)
    return [line.split("  ")[-1].strip() for line in text.splitlines()[5:7]]


def test_peaks_differ_by_a_share_by_bytes_where_it_is_tiny_or_by_nothing() -> None:
    assert differences(Peaks(200 * MIB, 0), Peaks(201 * MIB, 4 * MIB)) == ["+0.500%", "+4.0 MiB"]
    assert differences(Peaks(200 * MIB, 8), Peaks(200 * MIB - 512, 8)) == ["-512 B", "0"]
    assert differences(Peaks(512, 10**5), Peaks(1536, 10**5 - 1)) == ["+200.000%", "-0.001%"]


def test_one_gpu_that_differs_is_enough_to_differ() -> None:
    other = replace(EQUAL, device=1, simulated=Peaks(513, 4 * MIB))
    whole = Verification("run.pickle", "A100", (EQUAL, EQUAL), {}, True)
    assert whole.is_equal
    assert not replace(whole, comparisons=(EQUAL, other)).is_equal
