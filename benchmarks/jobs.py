"""``merge``, ``show`` and the page of a job of 2,048 ranks of a program of 420 lines.

One rank runs, simulated. The files of the others are made of its profile, with other peaks; rank
341 holds more at one line, and rank 7 has no end.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.timing import arguments, heading, row
from pytorch_memlab.line_profiler.saved_profile import load
from pytorch_memlab.profiles.rank_digest import digest_of
from pytorch_memlab.profiles.recorded import RecordedProfile
from pytorch_memlab.saved import profile_file
from pytorch_memlab.saved.job_file import digest_data

RANKS = 2048
WORST = 341
KILLED = 7
_FUNCTIONS = 42
_COMMAND = (sys.executable, "-m", "pytorch_memlab")


def source(functions: int) -> str:
    """A program of functions of ten lines each, which takes memory in most of them."""
    lines = ["import torch"]
    for number in range(functions):
        lines.append(f"def f{number}():")
        lines += [
            f'    a{line} = torch.ones({number + line + 1} << 10, device="cuda")'
            for line in range(8)
        ]
        lines.append("    return a0.sum() + a1.sum()")
    return "\n".join([*lines, *(f"f{number}()" for number in range(functions))]) + "\n"


def write_ranks(folder: Path, profile: RecordedProfile, ranks: int) -> None:
    """Write the files of a job: those of all ranks are alike but for two."""
    for rank in range(ranks):
        more = (64 << 20) * (rank == WORST) + (rank % 7 << 9)
        run = replace(
            profile.runs[0],
            rank=rank,
            world_size=ranks,
            node=rank // 8,
            launcher="torchrun",
            exit_status=None if rank == KILLED else 0,
        )
        of_rank = replace(
            profile,
            runs=(run,),
            devices=tuple(
                replace(one, peak_active=one.peak_active + more) for one in profile.devices
            ),
        )
        digest = digest_of(of_rank)
        line = max(digest.held, key=lambda name: digest.held[name])
        digest = replace(digest, held={**digest.held, line: digest.held[line] + more})
        text = profile_file.text_of(of_rank, digest_data(digest))
        (folder / f"rank{rank}.attempt0.json").write_text(text)


def measured(*words: str) -> tuple[float, str]:
    """User and system seconds of a command, and its standard output."""
    before = os.times()
    done = subprocess.run([*_COMMAND, *words], stdout=subprocess.PIPE, text=True, check=True)
    after = os.times()
    user = after.children_user - before.children_user
    return user + after.children_system - before.children_system, done.stdout


def main() -> None:
    heading(f"a job of {RANKS:,} ranks, {_FUNCTIONS * 10} lines")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program, job = folder / "program.py", folder / "job.memlab"
        program.write_text(source(_FUNCTIONS))
        measured("run", "--gpu", "24GiB", "-o", str(job), str(program))
        profile = load(job / "rank0.attempt0.json").recorded()
        write_ranks(job, profile, RANKS)
        merged, page = folder / "all.json", folder / "all.html"
        seconds, _ = measured("merge", "-o", str(merged), str(job))
        # of all commands so far, in KiB: the run of the program is among them
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        row("merge", seconds, "s", at_most=60)
        row("memory of the largest command", memory, "MiB", at_most=1024)
        row("merged file", merged.stat().st_size / 1e6, "MB")
        seconds, text = measured("show", str(job))
        row("show", seconds, "s", at_most=10)
        row("lines that it prints", text.count("\n"), "", at_most=60)
        seconds, _ = measured("show", "-o", str(page), str(job))
        row("page", seconds, "s")
        row("size of the page", page.stat().st_size / 1e6, "MB", at_most=5)
        print(text)
        assert json.loads(merged.read_text())["peak"]["rank"] == WORST


if __name__ == "__main__":
    arguments(__doc__)
    main()
