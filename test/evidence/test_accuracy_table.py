"""The table of simulation beside recordings."""

from __future__ import annotations

import pytest
from recorded_programs.catalogue import COMPILED, PUBLIC, program_of
from recorded_programs.streams import FOLDER, adopt, load
from recorded_programs.workloads import WORKLOADS

from benchmarks import accuracy


def test_a_recording_that_is_simulated_exactly():
    found = accuracy.compare("attention_from_start", load("attention_from_start"))
    peaks = (3249144832, 3781165056)
    assert found == accuracy.Comparison("attention_from_start", 62, 62, peaks, peaks)


@pytest.mark.parametrize(
    ("name", "active"), [("attention_from_start", 3098.63), ("lm_small_ctx128_forward", 534.95)]
)
def test_recorded_peaks(name, active):
    peak, _ = accuracy.recorded_peaks(load(name), adopt)
    assert round(peak / 2**20, 2) == active


def test_a_recording_without_a_program_is_named():
    assert accuracy.compare("nobody_wrote_it", {}) is None
    text = accuracy.table([], ["nobody_wrote_it"])
    assert text.endswith("\n\nRecordings whose programs are not written yet: `nobody_wrote_it`.")


def test_a_row_says_how_much_differs():
    row = accuracy.Comparison("lstm", 1234, 2000, (200 * 2**20, 1000), (201 * 2**20, 1000)).cells()
    assert row == [
        "`lstm`", "1,234 of 2,000", "200.00M, 201.00M", "+0.5000%", "1000.00B, 1000.00B", "0"
    ]  # fmt: skip


def test_of_a_recording_with_the_compiler_peaks_alone_are_compared():
    row = accuracy.Comparison("compiled", 0, 0, (1000, 1000), (999, 1000)).cells()
    assert row[1:4] == ["the compiler is in it", "1000.00B, 999.00B", "-0.1000%"]
    assert set(COMPILED) <= set(PUBLIC)


def test_the_table_goes_between_its_marks(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- accuracy -->\nold\n<!-- /accuracy -->\nafter\n")
    accuracy.write("new", readme)
    assert readme.read_text() == "before\n<!-- accuracy -->\nnew\n<!-- /accuracy -->\nafter\n"
    readme.write_text("no marks")
    with pytest.raises(ValueError, match=r"README\.md needs the marks"):
        accuracy.write("new", readme)


def test_every_workload_and_every_published_program_can_be_simulated():
    assert {name for name in WORKLOADS if program_of(name) is None} == set()
    recorded = {path.name.removesuffix(".json.gz") for path in FOLDER.glob("*.json.gz")}
    assert set(PUBLIC) <= recorded


def test_the_table_is_made_from_the_recordings_in_the_repository():
    assert accuracy.RECORDINGS == FOLDER
    assert len(list(accuracy.recordings())) == 13
