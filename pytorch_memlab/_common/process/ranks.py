"""The rank of this process, of several that a launcher started: its files, and whether it prints.

The names of the variables are those that each launcher documents or sets in its source.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, NamedTuple


class Launcher(NamedTuple):
    """The environment variables by which a launcher tells a process which of several it is."""

    name: str
    marks: tuple[str, ...]  # it sets all of these, and what starts a single process does not
    rank: tuple[str, ...]  # of the names of one fact, the first that is set counts
    local_rank: tuple[str, ...]
    world_size: tuple[str, ...]
    local_world_size: tuple[str, ...] = ()
    node: tuple[str, ...] = ()
    job: tuple[str, ...] = ()  # these differ from one job to the next


SPAWNED_RANK: Final = "PYTORCH_MEMLAB_RANK"
SPAWNED_RANKS: Final = "PYTORCH_MEMLAB_RANKS"
ATTEMPT: Final = "PYTORCH_MEMLAB_ATTEMPT"
"""What ``run`` tells the processes that a program starts with ``torch.multiprocessing.spawn``."""

SPAWN: Final = "mp.spawn"
LIGHTNING: Final = "lightning"

_TORCH: Final = ("RANK",), ("LOCAL_RANK",), ("WORLD_SIZE",), ("LOCAL_WORLD_SIZE",)

# A launcher that another one started goes before it: torchrun under srun counts.
LAUNCHERS: Final = (
    # accelerate launch and python -m torch.distributed.run are torchrun
    Launcher("torchrun", ("TORCHELASTIC_RUN_ID",), *_TORCH, ("GROUP_RANK",)),
    # deepspeed/launcher/launch.py
    Launcher("deepspeed", ("CROSS_SIZE", "RANK"), *_TORCH[:3], ("LOCAL_SIZE",), ("CROSS_RANK",)),
    # ray/train/torch/config.py, in an actor of Ray
    Launcher("Ray Train", ("RAY_JOB_ID", "RANK"), *_TORCH, ("NODE_RANK",), ("RAY_JOB_ID",)),
    # lightning/fabric/strategies/launchers/subprocess_script.py; the rank on a node is all it sets
    Launcher(
        LIGHTNING,
        ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_PORT"),
        ("RANK", "LOCAL_RANK"),
        *_TORCH[1:3],
        node=("NODE_RANK",),
    ),
    Launcher(SPAWN, (SPAWNED_RANK,), (SPAWNED_RANK,), (SPAWNED_RANK,), (SPAWNED_RANKS,)),
    Launcher(
        "Open MPI",
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
        job=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    ),
    Launcher(
        "srun",
        ("SLURM_PROCID", "SLURM_LOCALID"),
        ("SLURM_PROCID",),
        ("SLURM_LOCALID",),
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
        ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
        ("SLURM_NODEID",),
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
    # MPICH and Intel MPI, by Hydra
    Launcher(
        "mpiexec",
        ("PMI_RANK",),
        ("PMI_RANK",),
        ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
        ("PMI_SIZE",),
        ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
    ),
    # PMIx tells a process its rank alone; the rest it asks its server for
    Launcher("PMIx", ("PMIX_RANK",), ("PMIX_RANK",), (), (), job=("PMIX_NAMESPACE",)),
)


@dataclass(frozen=True, slots=True)
class JobRank:
    """One process of a job."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1  # 0 if that is not known
    local_world_size: int = 1  # processes on this node, or in all if that is not known
    node: int = 0
    launcher: str = ""  # empty for a process that nothing started as one of several
    job: str = ""  # what tells this job from others; empty if that is not known
    attempt: int = 0  # of starting all processes of the job again after one of them died

    @property
    def is_one_of_several(self) -> bool:
        # The process that calls mp.spawn is one more than the rank that it starts.
        return bool(self.launcher) and (self.world_size != 1 or self.launcher == SPAWN)


def rank_in(environment: Mapping[str, str]) -> JobRank:
    """The rank that a launcher gave a process with these environment variables."""
    # Without a launcher, ``RANK`` and ``WORLD_SIZE`` may ask for one simulated rank of many, and
    # ``LOCAL_RANK`` and ``LOCAL_WORLD_SIZE`` for the GPUs of its node.
    for launcher in LAUNCHERS:
        if all(environment.get(name) for name in launcher.marks):
            return _rank_of(launcher, environment)
    local_rank = _first(environment, _TORCH[1], 0)
    return JobRank(
        _first(environment, _TORCH[0], 0),
        local_rank,
        _first(environment, _TORCH[2], 1),
        max(_first(environment, _TORCH[3], 1), local_rank + 1),
    )


def this_rank() -> JobRank:
    """The rank of this process, as its environment variables are now."""
    return rank_in(os.environ)


def path_of_rank(path: str) -> str:
    """The file of this process: ``{rank}`` and ``{pid}`` are filled in, or the rank is added."""
    own = this_rank()
    filled = path.replace("{rank}", str(own.rank)).replace("{pid}", str(os.getpid()))
    if filled != path or not own.is_one_of_several:
        return filled
    plain = PurePath(path)
    # The second of several calls of mp.spawn does not take the place of the first one.
    attempt = f".attempt{own.attempt}" if own.attempt and own.launcher == SPAWN else ""
    return str(plain.with_name(f"{plain.stem}.rank{own.rank}{attempt}{plain.suffix}"))


def prints() -> bool:
    """True if this process prints: of several that a launcher started, the first one does."""
    own = this_rank()
    return not own.is_one_of_several or own.rank == 0


def _rank_of(launcher: Launcher, environment: Mapping[str, str]) -> JobRank:
    local_rank = _first(environment, launcher.local_rank, 0)
    world_size = _first(environment, launcher.world_size, 0)
    return JobRank(
        _first(environment, launcher.rank, 0),
        local_rank,
        world_size,
        max(_first(environment, launcher.local_world_size, world_size), local_rank + 1),
        _first(environment, launcher.node, 0),
        launcher.name,
        ".".join(filter(None, (environment.get(name, "") for name in launcher.job))),
        _first(environment, ("TORCHELASTIC_RESTART_COUNT", ATTEMPT), 0),
    )


def _first(environment: Mapping[str, str], names: tuple[str, ...], otherwise: int) -> int:
    """The number in the first of these variables that has one; Slurm writes ``4(x2)`` for two."""
    for name in names:
        text = environment.get(name, "").partition("(")[0]
        if text.isdecimal():
            return int(text)
    return otherwise
