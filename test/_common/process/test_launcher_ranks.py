"""The rank of a process from the variables of its launcher, by a table of launchers."""

from __future__ import annotations

import pytest

from pytorch_memlab._common.process.ranks import JobRank, path_of_rank, prints, rank_in

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "6",
    "SLURM_LOCALID": "2",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_NODEID": "1",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-1",
    "PMIX_RANK": "3",
}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
DEEPSPEED = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_SIZE": "2",
    "CROSS_RANK": "1",
    "CROSS_SIZE": "2",
}
LIGHTNING = {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "4242"}
RAY = {
    "RAY_JOB_ID": "01000000",
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "NODE_RANK": "1",
}


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        (TORCHRUN, JobRank(5, 1, 8, 4, 1, "torchrun", "", 2)),
        ({**SLURM, **TORCHRUN}, JobRank(5, 1, 8, 4, 1, "torchrun", "", 2)),
        (SLURM, JobRank(6, 2, 8, 4, 1, "srun", "77.0")),
        ({**SLURM, "RANK": "6", "WORLD_SIZE": "8"}, JobRank(6, 2, 8, 4, 1, "srun", "77.0")),
        (OPEN_MPI, JobRank(3, 1, 4, 2, 0, "Open MPI", "prterun-1")),
        (HYDRA, JobRank(3, 1, 4, 2, 0, "mpiexec")),
        ({"PMIX_RANK": "3"}, JobRank(3, 0, 0, 1, 0, "PMIx")),
        (DEEPSPEED, JobRank(3, 1, 4, 2, 1, "deepspeed")),
        (LIGHTNING, JobRank(1, 1, 2, 2, 0, "lightning")),
        (RAY, JobRank(3, 1, 4, 2, 1, "Ray Train", "01000000")),
        ({"RANK": "3", "WORLD_SIZE": "8"}, JobRank(3, 0, 8)),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3"}, JobRank(3, 3, 8, 4)),
        ({"RANK": "9", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, JobRank(9, 0, 16, 8)),
        ({"RANK": "three", "WORLD_SIZE": ""}, JobRank()),
        ({}, JobRank()),
    ],
)
def test_each_launcher_has_its_own_variables(environment, rank):
    assert rank_in(environment) == rank


@pytest.mark.parametrize(
    ("environment", "path", "is_first"),
    [
        (TORCHRUN, "out.rank5.json", False),
        (SLURM, "out.rank6.json", False),
        (OPEN_MPI, "out.rank3.json", False),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0"}, "out.rank0.json", True),
        ({"PMIX_RANK": "3"}, "out.rank3.json", False),
        ({**SLURM, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, "out.json", True),
        ({"RANK": "3", "WORLD_SIZE": "8"}, "out.json", True),  # a simulated rank
    ],
)
def test_each_of_several_processes_has_its_own_file(environment, path, is_first, monkeypatch):
    for name in {*TORCHRUN, *SLURM, *OPEN_MPI}:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert (path_of_rank("out.json"), prints()) == (path, is_first)
