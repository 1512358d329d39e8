"""Lines of two profiles are compared where they match, and are new or gone elsewhere."""

from __future__ import annotations

from support.sample_reports import CUDA0, CUDA1, INNER, MIB, OUTER, entry

from pytorch_memlab.profiles.differences import DeviceChange, LineChange, SizeChange, compare
from pytorch_memlab.profiles.recorded import MeasuredDevice, RecordedCall, RecordedProfile
from pytorch_memlab.records import FunctionInfo

# The second line is another one, and a comment stands above the function.
CHANGED = FunctionInfo(
    "outer", "sample.py", 8, (*OUTER.source[:2], "    linear2 = None", OUTER.source[3])
)


def profile(functions, entries, calls, device, *peaks):
    return RecordedProfile((), (MeasuredDevice(device, 24, *peaks),), functions, entries, calls, ())


BEFORE = profile(
    (OUTER, INNER),
    (
        entry(0, 8, 4 * MIB, delta=3 * MIB),
        entry(0, 9, 5 * MIB, delta=MIB),
        entry(0, 10, 6 * MIB, delta=2 * MIB),
        entry(1, 5, 6 * MIB, delta=2 * MIB),
    ),
    (RecordedCall(1, 0, "sample.py", "outer", 10, 1, {"cuda:0": 2 * MIB}),),
    CUDA0,
    *(6 * MIB, 5 * MIB, 20 * MIB),
)
AFTER = profile(
    (CHANGED,),
    (
        entry(0, 9, 7 * MIB, delta=3 * MIB, device=CUDA1),
        entry(0, 10, 3 * MIB, delta=-MIB, device=CUDA1),
        entry(0, 11, 6 * MIB, delta=0, device=CUDA1),
    ),
    (),
    CUDA1,
    *(7 * MIB, 4 * MIB, 22 * MIB),
)


def test_lines_are_compared_where_they_match_and_are_new_or_gone_elsewhere():
    found = compare(BEFORE, AFTER)
    assert found.devices == (
        DeviceChange(
            "cuda:1",
            SizeChange(6 * MIB, 7 * MIB),
            SizeChange(5 * MIB, 4 * MIB),
            SizeChange(20 * MIB, 22 * MIB),
        ),
    )

    def line(function, number, former, is_new, is_gone, kept, own, peak, calls=False):
        sizes = (SizeChange(*(size * MIB for size in each)) for each in (kept, own, peak))
        return LineChange(function, number, "cuda:1", former, is_new, is_gone, *sizes, calls)

    same, new, gone = (False, False), (True, False), (False, True)
    assert set(found.lines) == {
        line(CHANGED, 9, (OUTER, 8), *same, (3, 3), (3, 3), (4, 7)),
        line(CHANGED, 10, None, *new, (0, 0), (0, -1), (0, 3)),
        line(CHANGED, 11, (OUTER, 10), *same, (2, 0), (0, 0), (6, 6)),
        line(OUTER, 9, None, *gone, (1, 0), (1, 0), (5, 0)),
        line(INNER, 5, None, *gone, (2, 0), (2, 0), (6, 0)),
    }
    assert [one.line for one in found.lines] == [9, 10, 11, 9, 5]
    assert [(one.line, one.own.growth // MIB) for one in found.own()] == [
        (5, -2),
        (10, -1),
        (9, -1),
    ]
    assert [(one.line, one.peak.growth // MIB) for one in found.peaks()] == [
        (5, -6),
        (9, -5),
        (9, 3),
        (10, 3),
    ]
