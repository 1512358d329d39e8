"""The text of two profiles: lines that changed, that are new and that are gone."""

from __future__ import annotations

from dataclasses import replace

from support.sample_reports import CUDA0, INNER, MIB, OUTER, entry

from pytorch_memlab.profiles.differences import compare
from pytorch_memlab.profiles.recorded import MeasuredDevice, RecordedProfile, Run
from pytorch_memlab.render import differences

RUN = Run("sample.py", (), {}, "", 1.0, is_dry_run=False, exit_status=0)
# The second line is another one, and a comment stands above the function.
CHANGED = replace(
    OUTER, first_line=8, source=(*OUTER.source[:2], "    linear2 = None", OUTER.source[3])
)
BEFORE = RecordedProfile(
    (RUN,),
    (MeasuredDevice(CUDA0, 24 << 30, 6 * MIB, 6 * MIB, 20 * MIB),),
    (OUTER, INNER),
    (
        entry(0, 8, 4 * MIB, delta=3 * MIB),
        entry(0, 9, 5 * MIB, delta=MIB),
        entry(1, 5, 6 * MIB, delta=2 * MIB),
    ),
    (),
    (),
)
AFTER = replace(
    BEFORE, functions=(CHANGED,), entries=(entry(0, 9, 7 * MIB, delta=5 * MIB), entry(0, 10, MIB))
)

TEXT = """\
a.json: sample.py, recorded on an unknown day
b.json: sample.py, recorded on an unknown day

cuda:0                 before       after       change
  peak active         6.0 MiB     6.0 MiB          0 B
  peak allocated      6.0 MiB     6.0 MiB          0 B
  peak reserved      20.0 MiB    20.0 MiB          0 B

lines that add more or less themselves, without the functions that they call:
   +2.0 MiB sample.py:9  outer (was line 8)
            3.0 MiB -> 5.0 MiB  linear = torch.nn.Linear(100, 100).cuda()
   -2.0 MiB sample.py:5  inner (gone)
            2.0 MiB -> 0 B  torch.nn.Linear(100, 100).cuda()
   -1.0 MiB sample.py:9  outer (gone)
            1.0 MiB -> 0 B  linear2 = torch.nn.Linear(100, 100).cuda()

lines whose peak is higher or lower:
   -6.0 MiB sample.py:5  inner (gone)
            6.0 MiB -> 0 B  torch.nn.Linear(100, 100).cuda()
   -5.0 MiB sample.py:9  outer (gone)
            5.0 MiB -> 0 B  linear2 = torch.nn.Linear(100, 100).cuda()
   +3.0 MiB sample.py:9  outer (was line 8)
            4.0 MiB -> 7.0 MiB  linear = torch.nn.Linear(100, 100).cuda()
   +1.0 MiB sample.py:10  outer (new)
            0 B -> 1.0 MiB  linear2 = None
"""


def test_a_line_that_is_gone_is_named_with_its_place_before() -> None:
    found = differences.text(("a.json", "b.json"), BEFORE, AFTER, compare(BEFORE, AFTER), 10)
    assert found == TEXT
