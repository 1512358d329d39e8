"""Processes that a simulated program starts are simulated, and nothing else is changed in them."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.environment_variable import tell_variable
from support.python_process import run_python
from torch.utils.data import DataLoader, Dataset

from pytorch_memlab import simulate
from pytorch_memlab.simulation.child_processes.start import VARIABLE, simulated
from pytorch_memlab.simulation.hardware.gpu import GPU
from pytorch_memlab.simulation.hardware.presets import PRESETS

QUADRO = GPU("Quadro RTX 5000", "16GiB", compute_capability=(7, 5), multiprocessors=48)
FREE = "print(torch.cuda.get_device_name(1), torch.cuda.mem_get_info(1))"


def run(code: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_a_python_that_is_started_has_the_same_gpus():
    code = f"import torch; torch.ones(3, device='cuda:1'); {FREE}"
    code += "; x = torch.empty(2**36, device='cuda')"  # more than this machine has
    with simulate(QUADRO, 2, compute=False, context="1GiB", others="2GiB"):
        free, total = torch.cuda.mem_get_info(1)
        found = run(code)
    assert found.stdout == f"Quadro RTX 5000 ({free - 2 * 2**20}, {total})\n"
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 GiB." in (
        found.stderr
    )


def test_it_ends_without_a_word():
    code = (
        "import atexit, torch; x = torch.ones(3, device='cuda', requires_grad=True)\n"
        "atexit.register(lambda: print(torch.ones(1).cuda()))"
    )
    with simulate("t4"):
        found = run(code)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout == "tensor([1.], device='cuda:0')\n"


def test_their_children_are_simulated_too():
    inner = "import torch; print(torch.cuda.get_device_name())"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    with simulate("t4"):
        assert run(outer).stdout == "Tesla T4\n"


def test_a_process_without_torch_is_left_alone(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text("print('my own')\n")
    before = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    code = (
        "import importlib.util, sys; importlib.util.find_spec('torch')\n"
        "print(sys.modules['sitecustomize'].__file__, {'torch', 'pytorch_memlab'} & {*sys.modules})"
        "\nprint([folder for folder in sys.path if 'child_site' in folder])"
    )
    with simulate("t4"):
        added = os.environ["PYTHONPATH"]
        found = run(code, PYTHONPATH=os.pathsep.join(filter(None, [added, before])))
    own = tmp_path / "sitecustomize.py"
    assert (found.stdout, found.stderr) == (f"my own\n{own} set()\n[]\n", "")


def test_torch_may_be_imported_by_this_package_first():
    code = "from pytorch_memlab import simulate; import torch; print(torch.cuda.get_device_name())"
    with simulate("t4"):
        found = run(code)
    assert (found.stdout, found.stderr) == ("Tesla T4\n", "")


def test_torch_in_another_thread_first_is_told():
    code = (
        "import threading\n"
        "def work():\n    import torch\n"
        "thread = threading.Thread(target=work)\nthread.start()\nthread.join()"
    )
    with simulate("t4"):
        found = run(code)
    assert found.returncode == 0
    assert found.stderr.endswith(
        "is not simulated: torch must be imported in the main thread first\n"
    )


def test_a_process_that_cannot_be_simulated_says_so_and_runs():
    with simulate("t4"):
        settings = json.loads(os.environ[VARIABLE])
        settings["options"]["count"] = 0
        found = run("import torch; print('on')", **{VARIABLE: json.dumps(settings)})
    assert found.stdout == "on\n"
    assert found.stderr.endswith("is not simulated: count must be a positive int, not 0\n")


@pytest.mark.parametrize("path", [None, "/somewhere"])
def test_the_environment_is_given_back(monkeypatch, path):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if path is not None:
        monkeypatch.setenv("PYTHONPATH", path)
    before = dict(os.environ)
    with simulate("t4"):
        outer = dict(os.environ)
        with simulate("a100"):
            assert os.environ[VARIABLE] != outer[VARIABLE]
        assert dict(os.environ) == outer
    assert dict(os.environ) == before


def test_what_the_program_adds_to_the_path_stays(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/first")
    with simulate("t4"):
        os.environ["PYTHONPATH"] += os.pathsep + "/second"
    assert os.environ["PYTHONPATH"] == os.pathsep.join(["/first", "/second"])


def test_a_gpu_is_told_whole():
    for gpu in (*PRESETS.values(), QUADRO):
        with simulated(gpu, {"count": 2}):
            settings = json.loads(os.environ[VARIABLE])
        assert (GPU(**settings["gpu"]), settings["options"]) == (gpu, {"count": 2})


def name_of_gpu(results: Any) -> None:
    results.put((os.getpid(), torch.cuda.get_device_name(), torch.ones(2, device="cuda").tolist()))


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_processes_of_multiprocessing_have_the_same_gpus(method):
    context = multiprocessing.get_context(method)
    results = context.Queue()
    with simulate("t4"):
        process = context.Process(target=name_of_gpu, args=(results,))
        process.start()
        pid, *found = results.get(timeout=60)
        process.join()
    assert pid == process.pid
    assert found == ["Tesla T4", [1, 1]]
    assert process.exitcode == 0


@pytest.mark.skipif(
    "forkserver" not in multiprocessing.get_all_start_methods(), reason="not on this system"
)
def test_a_server_of_another_time_forks_none_of_them():
    """One that runs already is not simulated, and the simulation's own is gone after it."""
    context = multiprocessing.get_context("forkserver")

    def is_simulated() -> bool:
        results = context.Queue()
        process = context.Process(target=tell_variable, args=(results, VARIABLE))
        process.start()
        found = results.get(timeout=60)
        process.join()
        return found is not None

    assert not is_simulated()
    with simulate("t4"):
        assert is_simulated()
    assert not is_simulated()


def test_a_program_that_has_trained_trains_in_its_forks():
    """Also with a build for CUDA, whose autograd would have threads for GPUs."""
    done = run_python(
        [
            "-c",
            """
import os, torch
from pytorch_memlab import simulate

with simulate("t4"):
    weight = torch.ones(2, device="cuda", requires_grad=True)
    weight.sum().backward()
    if not os.fork():
        (weight * 3).sum().backward()
        print(weight.grad, flush=True)
        os._exit(0)
    os.wait()
""",
        ]
    )
    assert (done.stdout, done.returncode) == ("tensor([4., 4.], device='cuda:0')\n", 0), done.stderr


class Places(Dataset):  # type: ignore[type-arg]
    """A dataset that tells where a worker makes its tensors."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[str, int]:
        made = torch.ones(2, device="cuda")
        return str(made.device), os.getpid()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_loader_are_simulated(method):
    with simulate("t4"):
        loader = DataLoader(Places(), num_workers=1, multiprocessing_context=method)
        found = [(place, int(pid)) for (place,), pid in loader]
    assert [place for place, _ in found] == ["cuda:0", "cuda:0"]
    assert os.getpid() not in {pid for _, pid in found}
