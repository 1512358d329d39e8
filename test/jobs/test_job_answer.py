"""The answer for a job: the worst rank, the first failure, groups of ranks, spread by line."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pytorch_memlab.profiles.job import Job, JobSummary, ranks_text
from pytorch_memlab.profiles.privacy import private_job
from pytorch_memlab.profiles.rank_digest import RankDigest
from pytorch_memlab.profiles.recorded import Run
from pytorch_memlab.render import job as job_text, job_page
from pytorch_memlab.saved import job_file

NOW = datetime(2026, 5, 4, 12, 4, 0, tzinfo=UTC)
MIB = 1 << 20
SOURCES = {"big.py:5": "a = torch.ones(n)", "big.py:9": "b = a * 2"}


def rank(number, peak=101, *, status=0, exception="", seconds_ago=0, line="", attempt=0):
    """A rank whose line 5 holds all but one MiB."""
    written = (NOW - timedelta(seconds=seconds_ago)).isoformat(timespec="seconds")
    return RankDigest(
        Run("/srv/x/big.py", (), {}, "", 1.0, is_dry_run=False, exit_status=status,
            exception=exception, rank=number, world_size=512, node=number // 8, attempt=attempt,
            launcher="torchrun", written=written, save_every=30.0, last_line=line),
        "cuda:0",
        80 << 30,
        peak * MIB,
        (peak + 1) * MIB,
        {"parameters": MIB, "activations": (peak - 1) * MIB},
        {"big.py:5": (peak - 1) * MIB, "big.py:9": MIB},
        {"big.py:5": (peak * MIB, MIB), "big.py:9": (2 * MIB, 0), "big.py:1": (0, 0)},
    )  # fmt: skip


def job(*ranks) -> Job:
    summary = JobSummary(NOW)
    for each in ranks:
        summary.add(each)
    return summary.job(SOURCES)


def of_512(**worst):
    return job(*(rank(number, **(worst if number == 341 else {})) for number in range(512)))


WORST = """\
job.memlab: 512 ranks of big.py on 64 nodes, started by torchrun

rank 341 failed first, at 12:03:10 UTC at big.py:5: torch.OutOfMemoryError: C...
  torch.OutOfMemoryError: CUDA out of memory: rank 341
  exit status 0: ranks 0-340, 342-511

peak 165.0 MiB on rank 341 of 80.00 GiB
  64.0 MiB above the median of 101.0 MiB (1.63 times)

rank 341: 165.0 MiB, because big.py:5 holds 64.0 MiB more  a = torch.ones(n)
ranks 0-340, 342-511: 101.0 MiB

       max  rank     median        min  peak of a line
 165.0 MiB   341  101.0 MiB  101.0 MiB  big.py:5  a = torch.ones(n)
   2.0 MiB     0    2.0 MiB    2.0 MiB  big.py:9  b = a * 2

       max  rank     median        min  category at the peak
 164.0 MiB   341  100.0 MiB  100.0 MiB  activations
   1.0 MiB     0    1.0 MiB    1.0 MiB  parameters
"""


def test_the_whole_text_of_512_ranks():
    found = of_512(
        peak=165,
        status=1,
        exception="torch.OutOfMemoryError: CUDA out of memory",
        seconds_ago=50,
        line="big.py:5",
    )
    assert job_text.text(found, "job.memlab") == WORST


def test_a_merged_job_is_the_same_answer():
    found = of_512(peak=165)
    text = job_file.text_of(found)
    assert job_file.FORMAT.begins(text)
    assert job_file.load(text, "all.json") == found


def test_the_page_has_every_rank_and_no_unescaped_text():
    found = of_512(peak=165, exception="ValueError: <script>", status=1)
    page = job_page.render(found, "job.memlab")
    assert page.count("<tr>") == 512 + 2 + 2 + 2 + 4
    assert "&lt;script&gt;" in page
    assert "ValueError: <script>" not in page
    spreads = page.partition("<h2>Peaks of lines</h2>")[2].partition("<tbody>")[0]
    assert spreads.strip() == (
        '<div class="scroll" tabindex="0" role="region" aria-label="Peaks of lines">\n<table>\n'
        '<thead><tr><th scope="col" class="number">max</th><th scope="col" class="number">on rank'
        '</th><th scope="col" class="number">median</th><th scope="col" class="number">min</th>'
        '<th scope="col"></th></tr></thead>'
    )


def test_of_those_that_end_with_an_error_the_earliest_is_first():
    found = job(
        rank(0, status=1, exception="RuntimeError: NCCL", seconds_ago=10, line="b.py:2"),
        rank(1, status=1, exception="ValueError: bad", seconds_ago=20, line="b.py:1"),
        rank(2, status=143, exception="SIGTERM", seconds_ago=30),
    )
    text = job_text.text(found, "job")
    assert "rank 1 failed first, at 12:03:40 UTC at b.py:1: ValueError: bad\n" in text


@pytest.mark.parametrize(
    ("others", "ago", "state"),
    [
        ({"status": None}, 89, "running"),
        ({"status": None}, 91, "did not end"),  # more than twice 30 s and 30 s more
        ({"status": 143, "exception": "SIGTERM"}, 5, "did not end"),
        ({"status": 0}, 5, "running"),
    ],
)
def test_a_rank_without_an_end_runs_or_was_killed(others, ago, state):
    found = job(rank(0, status=None, seconds_ago=ago, line="b.py:4"), rank(1, **others))
    assert found.ends[0].state == state
    line = "rank 0, written at"
    assert (line in job_text.text(found, "job")) == (state == "did not end")


def test_only_the_last_attempt_counts_but_each_has_its_failure():
    found = job(
        rank(0, 900, status=1, exception="ValueError: old", seconds_ago=60),
        rank(0, 10, attempt=1),
        rank(1, 900, status=143, exception="SIGTERM", seconds_ago=59),
        rank(1, 10, attempt=1),
    )
    assert (found.peak.most, found.peak.rank, len(found.last_ends)) == (10 * MIB, 0, 2)
    text = job_text.text(found, "job")
    assert "job: 2 ranks of big.py, started by torchrun, attempt 2\n" in text
    assert "attempt 1: rank 0 failed first, at 12:03:00 UTC: ValueError: old\n" in text


def test_the_text_has_at_most_60_lines_of_80_columns():
    found = job(
        *(
            rank(number, 1000 + 30 * (number % 50), status=number % 40 + 1, seconds_ago=number)
            for number in range(0, 500, 2)
        )
    )
    lines = job_text.text(found, "job.memlab").splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("without a file, of 512: ranks 1, 3, 5") for line in lines)


def test_peaks_that_differ_by_one_percent_are_alike():
    found = job(rank(0, 1000), rank(1, 995), rank(2, 985), rank(3, 984))
    assert [(group.ranks, group.active // MIB) for group in found.groups] == [
        ((0, 1), 1000),
        ((2, 3), 985),
    ]


def test_the_capacity_is_that_of_the_worst_ranks_device():
    small = replace(rank(0, 300), capacity=40 << 30)
    assert job(small, rank(1)).capacity == 40 << 30
    assert job(rank(1), small, rank(2)).capacity == 40 << 30


def test_no_rank_runs_on_after_the_launcher_ended_the_others_and_before_that_it_does():
    running, failed = rank(0, status=None), rank(1, status=1, exception="ValueError: x")
    [first, _] = job(running, failed).ends
    assert (first.has_end, first.has_failed) == (False, True)
    still = replace(failed, run=replace(failed.run, exit_status=None))
    assert [(end.has_end, end.has_failed) for end in job(running, rank(1)).ends] == [
        (False, False),
        (True, False),
    ]
    assert not job(running, still).ends[0].has_end


def test_the_digest_of_a_rank_is_read_from_the_head_of_its_file():
    digest = rank(3, 120)
    text = '{"format":"x","job":' + __import__("json").dumps(job_file.digest_data(digest))
    assert job_file.digest_in(text + ',"rest":"cut off') == digest
    assert job_file.digest_in(text[:-5]) is None


def test_a_private_answer_has_no_message_and_no_folder():
    found = private_job(
        job(rank(0, status=1, exception="ValueError: /srv/x", line="/srv/x/b.py:2"))
    )
    assert "/srv" not in job_file.text_of(found)
    assert (found.ends[0].state, found.ends[0].line) == ("ValueError", "b.py:2")


def test_ranges():
    assert ranks_text([3, 1, 0, 10, 2]) == "0-3, 10"
