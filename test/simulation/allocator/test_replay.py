"""Replays of traces: what differs is named at its event."""

import copy

import pytest

from pytorch_memlab.errors import UsageError
from pytorch_memlab.simulation import replay

MB = 2**20
BASE = 0x7000_0000_0000


@pytest.fixture
def trace():
    """Two tensors in a segment of 20 MiB, then a third in another; the first is freed."""
    segment, large = BASE, BASE + 64 * MB
    return {
        "settings": {"PYTORCH_CUDA_ALLOC_CONF": ""},
        "initial": [
            {
                "address": BASE + 32 * MB,
                "size": 2 * MB,
                "stream": 0,
                "pool": "small",
                "blocks": [[BASE + 32 * MB, 512, 1, 4], [BASE + 32 * MB + 512, 2 * MB - 512, 0]],
            },
            {
                "address": BASE + 128 * MB,
                "size": 30 * MB,
                "stream": 0,
                "pool": "large",
                "blocks": [[BASE + 128 * MB, 30 * MB, 0]],
            },
        ],
        "events": [
            ["segment_free", BASE + 128 * MB, 30 * MB, 0],
            ["segment_alloc", segment, 20 * MB, 0],
            ["alloc", segment, 4 * MB, 0, {}],
            ["alloc", segment + 4 * MB, 3 * MB, 0, {}],
            ["alloc", BASE + 32 * MB + 512, 100, 0, {}],
            ["segment_alloc", large, 40 * MB, 0],
            ["alloc", large, 40 * MB - 5, 0, {}],
            ["free", segment, 4 * MB, 0],
            ["free", BASE + 32 * MB, 4, 0],
        ],
        "final": [
            {
                "address": segment,
                "size": 20 * MB,
                "stream": 0,
                "pool": "large",
                "blocks": [
                    [segment, 4 * MB, 0],
                    [segment + 4 * MB, 3 * MB, 1],
                    [segment + 7 * MB, 13 * MB, 0],
                ],
            },
            {
                "address": BASE + 32 * MB,
                "size": 2 * MB,
                "stream": 0,
                "pool": "small",
                "blocks": [
                    [BASE + 32 * MB, 512, 0],
                    [BASE + 32 * MB + 512, 512, 1],
                    [BASE + 32 * MB + 1024, 2 * MB - 1024, 0],
                ],
            },
            {
                "address": large,
                "size": 40 * MB,
                "stream": 0,
                "pool": "large",
                "blocks": [[large, 40 * MB, 1]],
            },
        ],
    }


def differences(trace):
    return [(one.index, one.message) for one in replay(trace).mismatches]


def test_a_trace_made_by_hand_replays(trace):
    result = replay(trace)
    assert (result.allocations, result.mismatches, result.segments_checked) == (4, [], 3)
    assert result.final_matches


def test_a_wrong_address_is_told_at_its_event(trace):
    trace["events"][3][1] += 512
    assert differences(trace) == [
        (3, "3145728 bytes at 0x700000400000, recorded at 0x700000400200")
    ]


def test_a_segment_of_another_size_is_told(trace):
    trace["events"][1][2] = 22 * MB
    assert differences(trace) == [(2, "a segment of 20971520 bytes, recorded 23068672")]


def test_a_segment_that_was_not_needed_is_told_at_its_own_event(trace):
    trace["events"].insert(3, ["segment_alloc", BASE + 256 * MB, 2 * MB, 0])
    assert differences(trace) == [(3, "no segment of 2097152 bytes was needed at 0x700010000000")]


def test_a_segment_that_was_not_recorded_is_told(trace):
    del trace["events"][5]
    assert differences(trace) == [
        (5, "a segment of 41943040 bytes that was not recorded"),
        (5, "41943035 bytes at 0x4000000000000000, recorded at 0x700004000000"),
    ]


def test_a_segment_freed_while_in_use_is_told(trace):
    trace["events"].insert(0, ["segment_free", BASE + 32 * MB, 2 * MB, 0])
    assert differences(trace) == [(0, "the segment at 0x700002000000 is not free")]


def test_a_segment_kept_though_free_is_told(trace):
    trace["initial"][0]["blocks"] = [[BASE + 32 * MB, 2 * MB, 0]]
    trace["events"] = [["segment_free", BASE + 128 * MB, 30 * MB, 0]]
    assert differences(trace) == [(0, "the segment at 0x700002000000 is free, recorded as kept")]


def test_segments_freed_in_another_order_are_told(trace):
    trace["initial"][0]["blocks"] = [[BASE + 32 * MB, 2 * MB, 0]]
    trace["events"] = [
        ["segment_free", BASE + 32 * MB, 2 * MB, 0],
        ["segment_free", BASE + 128 * MB, 30 * MB, 0],
    ]
    assert differences(trace) == [(0, "segments are freed in another order")]


def test_a_free_of_nothing_is_told(trace):
    trace["events"].append(["free", BASE + 5, 1, 0])
    assert differences(trace) == [(9, "1 bytes freed at 0x700000000005, where none are allocated")]


def test_another_final_state_does_not_match(trace):
    for change in (
        lambda final: final.pop(),
        lambda final: final[0].update(stream=3),
        lambda final: final[0].update(pool="small"),
        lambda final: final[0]["blocks"][1].__setitem__(2, 0),
    ):
        broken = copy.deepcopy(trace)
        change(broken["final"])
        result = replay(broken)
        assert result.mismatches == []
        assert not result.final_matches


def test_the_settings_of_the_trace_are_used(trace):
    trace["settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "large_segment_size_mb:24"
    assert differences(trace)[0] == (2, "a segment of 25165824 bytes, recorded 20971520")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda trace: trace.pop("events"), "not an allocation trace: KeyError"),
        (lambda trace: trace["events"].append(["alloc", 1]), "not an allocation trace: ValueError"),
        (
            lambda trace: trace["events"].append(["grow", 1, 2, 0]),
            "event 9 has the unknown kind 'grow'",
        ),
        (lambda trace: trace.update(initial=3), "not an allocation trace: TypeError"),
    ],
)
def test_what_is_no_trace_is_refused(trace, change, message):
    change(trace)
    with pytest.raises(UsageError, match=message):
        replay(trace)
