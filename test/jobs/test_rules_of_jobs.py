"""Rules of the processes of a job at their starts and ends, each by itself and in process."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.run_command import ROOT

from pytorch_memlab._common.process.ranks import LIGHTNING, JobRank
from pytorch_memlab.errors import UsageError
from pytorch_memlab.jobs import attached, black_box, folder, launch
from pytorch_memlab.jobs.black_box import SAVE_EVERY, BlackBox
from pytorch_memlab.jobs.folder import JobFolder

CHILD_SITE = ROOT / "pytorch_memlab" / "jobs" / "child_site"


@pytest.fixture(autouse=True)
def nothing_launched_this(tmp_path, monkeypatch):
    """Within: an empty folder, and an environment of no rank."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID", launch.VARIABLE):
        monkeypatch.delenv(name, raising=False)


# The launcher


def test_a_launcher_that_is_not_there_is_named():
    with pytest.raises(UsageError, match=r"^there is no command no_such_launcher on the PATH$"):
        launch.launcher_command(["no_such_launcher", "x.py"], is_module=False)
    words = [sys.executable, "-m", "no_such_launcher", "x.py"]
    assert launch.launcher_command(["no_such_launcher", "x.py"], is_module=True) == words


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("end", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", 128 + signal.SIGTERM)]
)
def test_the_exit_code_of_a_launcher_is_the_one_that_a_shell_has(end, status):
    assert launch.launched(["sh", "-c", end], []) == status


# The processes that it starts


def child_site(monkeypatch, *words: str) -> tuple[ModuleType, list[list[str]]]:
    """``sitecustomize`` of a process that was started with these words, and what it becomes."""
    spec = importlib.util.spec_from_file_location("child", CHILD_SITE / "sitecustomize.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    became: list[list[str]] = []
    monkeypatch.setattr(module.os, "execv", lambda _path, new: became.append(new))
    monkeypatch.setattr(module.sys, "orig_argv", ["python", *words])
    monkeypatch.setenv(launch.VARIABLE, "[]")
    return module, became


def test_the_process_of_a_rank_becomes_one_of_run_and_those_that_it_starts_do_not(monkeypatch):
    module, became = child_site(monkeypatch, "-u", "-m", "train", "--lr", "1")
    for name, value in (("TORCHELASTIC_RUN_ID", "7"), ("RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    module._become_rank(["--history"])
    run = [str(CHILD_SITE / "run_rank.py"), "run", "--history"]
    assert became == [[sys.executable, "-u", *run, "-m", "--", "train", "--lr", "1"]]
    assert launch.VARIABLE not in os.environ
    assert "_pytorch_memlab_ranks" not in sys.modules


@pytest.mark.parametrize(
    ("variables", "launcher"),
    [
        ({"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NTASKS": "2"}, "srun"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, "Open MPI"),
        ({"RANK": "1", "WORLD_SIZE": "2", "CROSS_SIZE": "1"}, "deepspeed"),
    ],
)
def test_a_rank_of_any_launcher_becomes_one_of_run(variables, launcher, monkeypatch):
    module, became = child_site(monkeypatch, "-u", "own.py")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    module._become_rank([])
    run = [str(CHILD_SITE / "run_rank.py"), "run", "--", "own.py"]
    assert became == [[sys.executable, "-u", *run]]
    rank = box()._rank_now()
    assert (rank.launcher, rank.rank, rank.world_size) == (launcher, 1, 2)


@pytest.mark.parametrize("words", [("train.py",), ("-m", "torch.distributed.run", "x.py"), ("-",)])
def test_another_process_of_the_job_stays_what_it_is(words, monkeypatch):
    module, became = child_site(monkeypatch, *words)
    if words != ("train.py",):  # which no launcher started
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "7")
        monkeypatch.setenv("RANK", "1")
    module._become_rank([])
    assert became == []
    assert os.environ[launch.VARIABLE] == "[]"


def python(*words: str, path: tuple[Path, ...] = (), **environment: str) -> str:
    """The output of a new Python."""
    folders = os.pathsep.join(map(str, path))
    env = {**os.environ, **environment, "PYTHONPATH": folders}
    command = [sys.executable, *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


def test_the_sitecustomize_that_was_there_before_runs_too(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('its own')\n")
    assert python("-c", "print('program')", path=(CHILD_SITE, tmp_path)) == "its own\nprogram\n"


def test_a_rank_takes_the_package_of_its_launcher_where_no_path_leads_to_it(tmp_path):
    start = (
        "import importlib, runpy, sys\n"
        "def main(name):\n"
        "    print(name, sys.modules['pytorch_memlab'].__file__)\n"
        "    sys.exit()\n"
        "importlib.import_module = main\n"
        f"runpy.run_path({str(CHILD_SITE / 'run_rank.py')!r}, run_name='__main__')\n"
    )
    file = ROOT / "pytorch_memlab" / "__init__.py"
    assert python("-S", "-c", start) == f"pytorch_memlab.cli.main {file}\n"


# The folder of a job


def test_a_file_of_the_older_job_that_another_rank_removed_first_is_no_error(monkeypatch):
    Path("old.memlab").mkdir()
    Path("old.memlab/job.json").write_text('{"job": "old"}')
    listed = [[Path("old.memlab/rank3.attempt0.json")], []]
    monkeypatch.setattr(folder, "rank_files", lambda _folder: listed.pop(0))
    JobFolder("old.memlab", replaces_older=True, job="new")
    assert json.loads(Path("old.memlab/job.json").read_text()) == {"job": "new"}
    assert os.listdir("old.memlab") == ["job.json"]


# The black box


def box(every: float | None = None) -> BlackBox:
    return BlackBox(
        JobFolder("job.memlab", replaces_older=True, job="job"), every, is_private=False
    )


def test_a_program_that_is_no_rank_of_a_launcher_is_the_rank_that_it_was_last(monkeypatch):
    kept, distributed = (
        box(),
        SimpleNamespace(is_initialized=lambda: True, get_rank=lambda: 2, get_world_size=lambda: 4),
    )
    assert kept._rank_now() == kept.rank
    lightning = replace(kept.rank, launcher=LIGHTNING, rank=1, world_size=2, node=5)
    kept.rank = lightning
    assert kept._rank_now() == lightning
    # The program has set up its own group by now.
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    assert kept._rank_now() == kept.rank == replace(lightning, rank=2, world_size=4)


def test_the_rank_of_a_launcher_goes_before_that_of_the_program(monkeypatch):
    kept = box()
    for name, value in (("TORCHELASTIC_RUN_ID", "7"), ("RANK", "1"), ("WORLD_SIZE", "8")):
        monkeypatch.setenv(name, value)
    distributed = SimpleNamespace(
        is_initialized=lambda: True, get_rank=lambda: 0, get_world_size=lambda: 2
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    rank: JobRank = kept._rank_now()
    assert (rank.launcher, rank.rank, rank.world_size) == ("torchrun", 1, 8)


@pytest.mark.parametrize(
    ("every", "seconds", "expected"),
    [
        (None, 0.5, 0.5 * black_box._SHARE),  # a large file is written more rarely
        (None, 0.001, SAVE_EVERY),
        (7.0, 0.5, 7.0),  # as the user said
    ],
)
def test_the_time_until_the_next_file_follows_from_that_of_the_last_one(
    every, seconds, expected, monkeypatch
):
    kept = box(every)
    clock = iter([100.0, 100.0 + seconds])
    monkeypatch.setattr(black_box, "time", SimpleNamespace(thread_time=lambda: next(clock)))

    def save(_take: Any) -> None:
        kept._is_done = True

    monkeypatch.setattr(kept, "_save", save)
    kept.save_now()
    kept._save_always(lambda: pytest.fail("nothing is taken"))
    assert kept._every == pytest.approx(expected)


def test_a_profile_whose_tables_changed_meanwhile_is_taken_again():
    tables = [RuntimeError("dictionary changed size during iteration"), "profile"]

    def take() -> Any:
        table = tables.pop(0)
        if isinstance(table, Exception):
            raise table
        return table

    profile, line = black_box.taken(take)
    assert (profile, tables) == ("profile", [])
    assert line


# A process that is attached to


def test_modules_behind_one_without_functions_are_recorded_too(monkeypatch):
    empty, full = ModuleType("empty"), ModuleType("full")
    empty.__file__ = full.__file__ = __file__
    added: list[ModuleType] = []

    class Profiler:
        def add_function(self, module: ModuleType) -> None:
            if module is empty:
                raise UsageError("it defines no function")
            added.append(module)

        def enable(self) -> None:
            pass

    monkeypatch.setattr(attached, "LineProfiler", Profiler)
    monkeypatch.setattr(attached, "RunPeaks", lambda: SimpleNamespace(begin=lambda: None))
    monkeypatch.setattr(attached, "_running_modules", list)
    modules = {"empty": empty, "full": full}
    monkeypatch.setattr(attached, "sys", SimpleNamespace(modules=modules))
    attached.RunningProgram()._begin()
    assert added == [full]
