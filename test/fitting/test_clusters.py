"""``fit`` on a cluster finds what it finds here."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import Executor, Future
from types import ModuleType

import pytest
from support.fit_command import fitted
from support.run_command import ROOT

from pytorch_memlab.errors import UsageError
from pytorch_memlab.fitting import cluster as clusters
from pytorch_memlab.fitting.child import ChildWork, done_elsewhere, run_in_children

PROGRAM = """\
import os, sys, torch

batch = int(os.environ.get("BATCH", sys.argv[1]))
print("batch", batch, os.getpid())
layer = torch.nn.Linear(1024, 1024, bias=False, device="cuda")
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for step in range(4):
    layer(torch.ones(batch, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

DASK = """\
import time
from distributed import LocalCluster

if __name__ == "__main__":
    with LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster:
        print(cluster.scheduler_address.replace("tcp://", "dask://"), flush=True)
        time.sleep(600)
"""

RAY = """\
import time, ray
ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000)
print("ray://auto", flush=True)
time.sleep(600)
"""


@pytest.fixture(params=["dask", "ray"])
def address(request, tmp_path):
    """The address of a cluster on this machine, of another process."""
    pytest.importorskip({"dask": "distributed.client"}.get(request.param, request.param))
    script = tmp_path / "cluster.py"
    script.write_text({"dask": DASK, "ray": RAY}[request.param])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            yield next(line.strip() for line in process.stdout if "://" in line)
        finally:
            process.terminate()


def test_gpus_and_sizes_have_the_same_answers_on_a_cluster(address, tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    for question in (["--gpu", "64MiB,24GiB"], ["--gpu", "64MiB", "--vary", "BATCH=1,64,1024"]):
        arguments = [*question, str(script), "512"]
        here = fitted(capsys, *arguments)
        there = fitted(capsys, "--cluster", address, *arguments)
        assert there[:2] == here[:2]
        assert here[1].count("MiB") > 2


class _Here(Executor):
    """Does the work at once, in this process."""

    def submit(self, fn, /, *args, **kwargs):
        future: Future = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def _of(path):
    return os.getcwd(), sys.path[-1], os.environ.get("PYTORCH_ALLOC_CONF"), os.getpid()


def _dies(_request):
    print("the last words", flush=True)
    os._exit(7)


def on(executor, hosts=("127.0.0.1",), places=2):
    return clusters.Cluster(executor, frozenset(hosts), places)


def test_a_run_elsewhere_has_the_folder_the_path_and_the_settings_of_this_process(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "own")])
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    work = ChildWork(_of, "", lambda status: status)
    with done_elsewhere(on(_Here()).run):
        found = dict(run_in_children([work, work], 1))
    assert [one[:3] for one in found.values()] == [
        (str(tmp_path), str(tmp_path / "own"), "expandable_segments:True")
    ] * 2
    assert len({os.getpid(), *(one[3] for one in found.values())}) == 3


def test_a_run_that_dies_elsewhere_is_lost_and_what_it_printed_is_there(tmp_path):
    output = tmp_path / "output.txt"
    work = ChildWork(_dies, "", lambda status: f"lost {status}", str(output))
    assert list(on(_Here()).run([work])) == [(0, "lost 7")]
    assert output.read_text() == "the last words\n"


def test_what_a_machine_of_the_cluster_raises_is_an_error_of_the_command(tmp_path):
    class Broken(_Here):
        def submit(self, fn, /, *args, **kwargs):
            future: Future = Future()
            future.set_exception(MemoryError("worker killed"))
            return future

    with pytest.raises(UsageError, match="a run on the cluster has ended: MemoryError: worker kil"):
        list(on(Broken()).run([ChildWork(_of, "", lambda status: status)]))


def test_ranks_side_by_side_need_one_machine_and_a_place_each():
    on(_Here()).check_side_by_side(2)
    with pytest.raises(UsageError, match=r"3 ranks run .* room for 2"):
        on(_Here()).check_side_by_side(3)
    with pytest.raises(UsageError, match="ranks run side by side on one machine"):
        on(_Here(), hosts=("127.0.0.1", "192.0.2.77")).check_side_by_side(2)


@pytest.mark.parametrize("address", ["dask", "dask://", "slurm://host:1", "127.0.0.1:8786"])
def test_an_address_of_no_cluster_is_an_error(address, tmp_path, capsys):
    (tmp_path / "train.py").write_text(PROGRAM)
    code, text, errors = fitted(capsys, "--cluster", address, str(tmp_path / "train.py"), "1")
    assert (code, text) == (2, "")
    assert f"a cluster is dask://HOST:PORT or ray://HOST:PORT, not {address}" in errors


@pytest.mark.parametrize("found", [None, ModuleType("distributed")], ids=["nothing", "a folder"])
def test_a_package_that_is_not_installed_is_named(found, tmp_path, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "distributed.client", raising=False)
    monkeypatch.setitem(sys.modules, "distributed", found)
    (tmp_path / "train.py").write_text(PROGRAM)
    words = ("--cluster", "dask://127.0.0.1:1", str(tmp_path / "train.py"), "1")
    code, _, errors = fitted(capsys, *words)
    assert code == 2
    assert "--cluster dask:// needs distributed: pip install 'pytorch-memlab[dask]'" in errors


def test_a_scheduler_that_does_not_answer_is_an_error(tmp_path, capsys, monkeypatch):
    pytest.importorskip("distributed.client")
    monkeypatch.setattr(clusters, "_PATIENCE", 0.5)
    with socket.socket() as bound:  # which does not listen
        bound.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{bound.getsockname()[1]}"
        (tmp_path / "train.py").write_text(PROGRAM)
        words = ("--cluster", f"dask://{place}", str(tmp_path / "train.py"), "1")
        code, _, errors = fitted(capsys, *words)
    assert code == 2
    assert f"no scheduler of Dask answers at {place}" in errors
