"""The allocator does what real GPUs were recorded to do, allocation by allocation."""

import re

import pytest
from recorded_programs.streams import FOLDER, load

from pytorch_memlab.simulation import replay

# allocations; segments made and freed, and ranges of pages mapped and unmapped
COUNTS = {
    "attention_from_start": (36, 9),
    "graph_trainer_expandable": (2434, 175),
    "lm2.7b_ctx128_forward": (2058, 289),
    "lm2.7b_ctx128_forward_bf16": (2703, 461),
    "lm2.7b_ctx128_forward_other": (3113, 178),
    "lm2.7b_ctx128_train": (6771, 783),
    "lm2.7b_ctx128_train_again": (6770, 1212),
    "lm2.7b_ctx256_train": (6769, 1571),
    "lm2.7b_ctx512_forward": (2057, 898),
    "lm2.7b_ctx512_forward_bf16": (2702, 1235),
    "lm2.7b_ctx512_train": (6769, 1379),
    "lm_small_ctx128_forward": (681, 0),
    "lm_small_ctx128_forward_bf16": (937, 0),
}


def test_every_recording_is_replayed():
    assert {path.name.removesuffix(".json.gz") for path in FOLDER.glob("*.json.gz")} == set(COUNTS)


def test_the_readme_of_the_recordings_gives_their_events_and_peaks():
    rows = re.findall(
        r"^\| `([\w.]+)` \|.*\| ([\d,]+) \| ([\d.]+) MiB \|$",
        (FOLDER / "README.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert [name for name, _, _ in rows] == sorted(COUNTS)
    for name, events, peak in rows:
        trace = load(name)
        assert events == f"{len(trace['events']):,}"
        assert peak == f"{replay(trace).stats['active_bytes']['all']['peak'] / 2**20:.2f}"


@pytest.mark.parametrize("name", COUNTS)
def test_every_allocation_lands_where_a_real_gpu_put_it(name):
    result = replay(load(name))
    assert result.mismatches == []
    assert result.final_matches
    assert (result.allocations, result.segments_checked) == COUNTS[name]
