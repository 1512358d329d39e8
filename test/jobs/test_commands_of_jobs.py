"""``show`` and ``merge`` of the folder of a job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.run_command import command

from pytorch_memlab.cli.main import main

SCRIPT = "import torch\nkept = torch.ones(1 << 18, device='cuda')\n"


@pytest.fixture
def job(write):
    """The folder of a run of one rank."""
    assert command("--gpu", "24GiB", "-o", "job.memlab", write(SCRIPT)).returncode == 0
    return Path("job.memlab")


TEXT = """\
job.memlab: 1 rank of script.py

  exit status 0: rank 0

peak 1.0 MiB on rank 0 of 24.00 GiB

rank 0: 1.0 MiB

       max  rank     median        min  peak of a line
   1.0 MiB     0    1.0 MiB    1.0 MiB  script.py:2  kept = torch.ones(1 << 1...

       max  rank     median        min  category at the peak
   1.0 MiB     0    1.0 MiB    1.0 MiB  inputs and other tensors
"""


def test_the_folder_and_its_merged_file_show_the_same(job, capsys):
    assert main(["show", "job.memlab/"]) == 0
    assert capsys.readouterr().out == TEXT
    assert main(["merge", "-o", "all.json", "job.memlab"]) == 0
    assert capsys.readouterr().err == "merged profile of 1 ranks written to all.json\n"
    assert main(["show", "all.json"]) == 0
    assert capsys.readouterr().out == TEXT.replace("job.memlab", "all.json")
    assert main(["show", "-o", "job.html", "-o", "job.txt", "job.memlab"]) == 0
    assert Path("job.txt").read_text() == TEXT
    assert "script.py:2" in Path("job.html").read_text()


def test_the_file_of_a_rank_is_a_profile_as_any(job, capsys):
    assert main(["show", str(job / "rank0.attempt0.json")]) == 0
    assert "kept = torch.ones" in capsys.readouterr().out


def test_files_that_cannot_be_read_are_left_out_and_named(job, capsys):
    (job / "rank1.attempt0.json").write_text("{")
    (job / "rank2.attempt0.json").write_text('{"format":"x","job":{"run":3}}')
    (job / "notes.txt").write_text("mine")
    assert main(["show", "job.memlab"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("rank1.attempt0.json is left out: ")
    assert lines[2].startswith("rank2.attempt0.json is left out: ")


def test_a_digest_without_its_profile_still_counts(job, capsys):
    file = job / "rank0.attempt0.json"
    file.write_text(file.read_text()[:-200])
    assert main(["show", "job.memlab"]) == 0
    assert "peak 1.0 MiB on rank 0" in capsys.readouterr().out


def test_an_empty_folder_is_an_error(write, capsys):
    Path("job.memlab").mkdir()
    assert main(["show", "job.memlab"]) == 2
    message = "job.memlab has no profile of a rank: none has been written so far"
    assert capsys.readouterr().err == f"pytorch-memlab show: error: {message}\n"


def test_a_part_is_of_one_rank(job, capsys):
    assert main(["show", "--top", "3", "job.memlab"]) == 2
    assert "give the file of one of them, such as job.memlab/rank0.at" in capsys.readouterr().err


def test_a_damaged_answer_is_refused(job, capsys):
    assert main(["merge", "-o", "all.json", "job.memlab"]) == 0
    data = json.loads(Path("all.json").read_text())
    del data["checksum"], data["ends"]
    Path("all.json").write_text(json.dumps(data, separators=(",", ":")))
    capsys.readouterr()
    assert main(["show", "all.json"]) == 2
    assert "all.json is a damaged job: " in capsys.readouterr().err
