"""The folder of a job: one job at a time, each rank and attempt with its own file."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
from pathlib import Path

import pytest
from support.run_command import command

from pytorch_memlab._common.process.ranks import JobRank
from pytorch_memlab.errors import UsageError
from pytorch_memlab.jobs.folder import JobFolder, is_job_folder, rank_files

SIZES = {"WORLD_SIZE": 4096, "LOCAL_WORLD_SIZE": 8}
TAKEN = "job.memlab has files of an older run: --force (force=True) removes them"


@pytest.fixture
def rank(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("PYTORCH_MEMLAB_JOB", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)

    def be(rank, attempt=0, job="job 1"):
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", job)
        for name, value in {"RANK": rank, "LOCAL_RANK": 0, **SIZES}.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(attempt))
        return JobRank(rank, attempt=attempt)

    return be


def written(rank, *, force=False):
    folder = JobFolder("job.memlab", replaces_older=force)
    name = folder.claim(rank)
    folder.write("{}")
    return name


def test_each_rank_and_attempt_has_a_file_in_the_order_of_numbers(rank):
    names = [written(rank(number, attempt)) for number in (10, 2, 0) for attempt in (1, 0)]

    assert names[0] == "job.memlab/rank10.attempt1.json"
    assert [path.name for path in rank_files("job.memlab")] == [
        f"rank{number}.attempt{attempt}.json" for number in (0, 2, 10) for attempt in (0, 1)
    ]


def test_another_job_is_refused_and_with_force_takes_the_place_of_the_older_one(rank):
    for number in range(3):
        written(rank(number))
    own = rank(0, job="job 2")

    with pytest.raises(UsageError) as refused:
        JobFolder("job.memlab", replaces_older=False)

    assert str(refused.value).startswith(TAKEN)
    written(own, force=True)
    assert sorted(os.listdir("job.memlab")) == ["job.json", "rank0.attempt0.json"]
    assert json.loads(Path("job.memlab/job.json").read_text()) == {"job": "torchrun.job 2"}
    written(rank(1, job="job 2"), force=True)  # the first one's file stays
    assert len(rank_files("job.memlab")) == 2


def test_a_file_system_without_links_has_the_same_folder(rank, monkeypatch):
    def refused(*_paths):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refused)
    for number in range(2):
        written(rank(number))
    names = ["job.json", "rank0.attempt0.json", "rank1.attempt0.json"]
    assert sorted(os.listdir("job.memlab")) == names


def test_the_same_rank_twice_is_refused(rank):
    written(rank(3))
    with pytest.raises(UsageError, match="has files of an older run"):
        JobFolder("job.memlab", replaces_older=False)


def _replace(number):
    os.environ["RANK"] = str(number)
    os.environ["TORCHELASTIC_RUN_ID"] = "job 2"
    written(JobRank(number), force=True)


def test_all_ranks_of_a_job_may_remove_the_older_one_at_once(rank):
    for number in range(40):
        written(rank(number))

    with multiprocessing.get_context("fork").Pool(8) as pool:
        pool.map(_replace, range(24), chunksize=3)

    names = {path.name for path in rank_files("job.memlab")}
    assert names == {f"rank{number}.attempt0.json" for number in range(24)}
    assert len(os.listdir("job.memlab")) == 25


def test_two_processes_of_one_rank_keep_both_files(rank):
    own = rank(0)
    folder, other = (JobFolder("job.memlab", replaces_older=False) for _ in range(2))
    for each in (folder, other):
        each.claim(own)
        each.write("{}")
    assert [path.name for path in rank_files("job.memlab")] == [
        "rank0.attempt0.json",
        f"rank0.attempt0.{os.getpid()}.json",
    ] or len(rank_files("job.memlab")) == 2


def test_names_of_folders():
    assert [is_job_folder(name) for name in ("a.memlab", "b/a.MEMLAB/", "a.memlab.json")] == [
        True,
        True,
        False,
    ]


USES = {
    "--save-every is for the folder of a job: give -o NAME.memlab too": ["--save-every", "3"],
    "-o a.memlab and -o b.memlab are two folders: give one": ["-o", "a.memlab", "-o", "b.memlab"],
    "cannot make the folder none/a.memlab: No such file or directory": ["-o", "none/a.memlab"],
    "cannot make the folder file.memlab: File exists": ["-o", "file.memlab"],
    "--save-every is a number of seconds from 1 on, not 0": ["-o", "a.memlab", "--save-every=0"],
}


@pytest.mark.parametrize("message", USES)
def test_what_cannot_be_done_is_said_before_the_program_runs(message, write):
    Path("file.memlab").touch()
    done = command(*USES[message], write("print('ran')"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"pytorch-memlab run: error: {message}\n"


def test_a_second_run_is_refused(write):
    script = write("print('ran')")
    assert command("-o", "job.memlab", script).returncode == 0
    again = command("-o", "job.memlab", script)
    assert (again.returncode, again.stdout) == (2, "")
    assert TAKEN in again.stderr
    assert command("--force", "-o", "job.memlab", script).returncode == 0


@pytest.mark.parametrize("is_there", [True, False])
def test_a_full_disk_is_said_in_a_line_and_nothing_is_left(is_there, rank, monkeypatch):
    rank(0)
    folder = Path("job.memlab")
    if is_there:
        folder.mkdir()

    def write_text(path, text):
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", write_text)

    with pytest.raises(UsageError) as refused:
        JobFolder("job.memlab", replaces_older=False)
    assert str(refused.value) == "cannot write into job.memlab: No space left on device"
    assert folder.exists() == is_there
    assert not is_there or list(folder.iterdir()) == []
