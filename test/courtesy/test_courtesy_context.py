"""The CUDA context is released: by stand-ins for the driver and for its tool, and simulated."""

from __future__ import annotations

import enum
import os
import stat
import types

import pytest
import torch

from pytorch_memlab.courtesy import Courtesy, context
from pytorch_memlab.courtesy.context import (
    BoundDriver,
    CheckpointedContext,
    ToolDriver,
    find_driver,
)
from pytorch_memlab.errors import ContextReleaseError, MemlabError, UsageError
from pytorch_memlab.simulation import simulate


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NOT_SUPPORTED = 801


class CUprocessState(enum.IntEnum):
    CU_PROCESS_STATE_RUNNING = 0
    CU_PROCESS_STATE_LOCKED = 1
    CU_PROCESS_STATE_CHECKPOINTED = 2
    CU_PROCESS_STATE_FAILED = 3


class Bindings:
    """Has the functions of ``cuda.bindings.driver``, their arguments and results, and a process."""

    CUresult = CUresult

    def __init__(self, fails=()):
        self.state = CUprocessState.CU_PROCESS_STATE_RUNNING
        self.calls = []
        self.fails = list(fails)
        self.state_after_failure = None

    def CUcheckpointLockArgs(self):
        return types.SimpleNamespace(timeoutMs=0)

    def _step(self, name, pid, expected, then):
        assert pid == os.getpid()
        self.calls.append(name)
        if name in self.fails:
            self.fails.remove(name)
            if self.state_after_failure is not None:
                self.state = self.state_after_failure
            return (CUresult.CUDA_ERROR_NOT_SUPPORTED,)
        assert self.state.name == f"CU_PROCESS_STATE_{expected}"
        self.state = CUprocessState[f"CU_PROCESS_STATE_{then}"]
        return (CUresult.CUDA_SUCCESS,)

    def cuCheckpointProcessLock(self, pid, args):
        assert args.timeoutMs == 10_000
        return self._step("lock", pid, "RUNNING", "LOCKED")

    def cuCheckpointProcessCheckpoint(self, pid, args):
        return self._step("checkpoint", pid, "LOCKED", "CHECKPOINTED")

    def cuCheckpointProcessRestore(self, pid, args):
        return self._step("restore", pid, "CHECKPOINTED", "LOCKED")

    def cuCheckpointProcessUnlock(self, pid, args):
        return self._step("unlock", pid, "LOCKED", "RUNNING")

    def cuCheckpointProcessGetState(self, pid):
        return CUresult.CUDA_SUCCESS, self.state


TOOL = """\
#!/bin/sh
echo "$@" >> {log}
case "$1 $2" in
"--get-state --pid") cat {state} ;;
"--action {fails}") echo "the driver says no" >&2; exit 1 ;;
"--action lock") echo locked > {state} ;;
"--action checkpoint") echo checkpointed > {state} ;;
"--action restore") echo locked > {state} ;;
"--action unlock") echo running > {state} ;;
esac
"""


@pytest.fixture
def make_tool(tmp_path):
    def make(fails="nothing"):
        (tmp_path / "state").write_text("running\n")
        (tmp_path / "log").touch()
        tool = tmp_path / "cuda-checkpoint"
        tool.write_text(TOOL.format(log=tmp_path / "log", state=tmp_path / "state", fails=fails))
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        return tool

    return make


@pytest.fixture
def gpu():
    with simulate("24GiB"):
        yield


@pytest.fixture
def bindings(monkeypatch, gpu):
    made = Bindings()
    monkeypatch.setattr(context, "simulated_machine", lambda: None)
    monkeypatch.setattr(context, "find_driver", lambda: BoundDriver(made))
    return made


def test_the_context_goes_after_the_tensors_and_comes_before_them(bindings):
    tensor = torch.arange(5.0, device="cuda")
    lender = Courtesy()
    lender.yield_memory(release_context=True)

    assert bindings.calls == ["lock", "checkpoint"]
    assert tensor.device.type == "cpu"
    lender.yield_memory()  # nothing can have come to the GPU
    tensor[0] = 7
    lender.restore()
    assert bindings.calls == ["lock", "checkpoint", "restore", "unlock"]
    assert str(tensor.device) == "cuda:0"
    assert tensor.tolist() == [7, 1, 2, 3, 4]


def test_a_second_yield_can_release_the_context_too(bindings):
    tensor = torch.arange(5.0, device="cuda")
    lender = Courtesy()
    lender.yield_memory()
    assert bindings.calls == []
    lender.yield_memory(release_context=True)
    assert bindings.calls == ["lock", "checkpoint"]
    lender.restore()

    assert tensor.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("step", ["lock", "checkpoint"])
def test_a_context_that_does_not_go_brings_everything_back(bindings, step):
    tensor = torch.arange(5.0, device="cuda")
    bindings.fails = [step]
    lender = Courtesy()
    with pytest.raises(
        ContextReleaseError,
        match=rf"^cuCheckpointProcess{step.capitalize()} failed: CUDA_ERROR_NOT_SUPPORTED; "
        "everything is on the GPU as before$",
    ):
        lender.yield_memory(release_context=True)

    assert bindings.state.name == "CU_PROCESS_STATE_RUNNING"
    assert str(tensor.device) == "cuda:0"
    with pytest.raises(MemlabError, match="nothing to restore"):
        lender.restore()


def test_a_broken_driver_leaves_the_tensors_in_host_memory(bindings):
    tensor = torch.arange(5.0, device="cuda")
    bindings.fails = ["checkpoint"]
    bindings.state_after_failure = CUprocessState.CU_PROCESS_STATE_FAILED
    with pytest.raises(ContextReleaseError, match="all tensors are safe in host memory: save them"):
        Courtesy().yield_memory(release_context=True)

    assert tensor.device.type == "cpu"
    assert tensor.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("step", ["restore", "unlock"])
def test_a_context_that_does_not_come_back_can_be_asked_again(bindings, step):
    tensor = torch.arange(5.0, device="cuda")
    lender = Courtesy()
    lender.yield_memory(release_context=True)
    bindings.fails = [step]
    with pytest.raises(ContextReleaseError, match=r"safe: call restore\(\) again$"):
        lender.restore()

    assert tensor.device.type == "cpu"
    lender.restore()
    assert bindings.state.name == "CU_PROCESS_STATE_RUNNING"
    assert str(tensor.device) == "cuda:0"


def test_nvidias_tool(make_tool, tmp_path):
    holder = CheckpointedContext(ToolDriver(str(make_tool())))
    assert holder.is_usable()
    holder.suspend()
    assert not holder.is_usable()
    holder.resume()

    pid = os.getpid()
    actions = [
        line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("--action")
    ]
    assert actions == [
        f"--action lock --timeout 10000 --pid {pid}",
        f"--action checkpoint --pid {pid}",
        f"--action restore --pid {pid}",
        f"--action unlock --pid {pid}",
    ]
    assert holder.is_usable()


def test_what_nvidias_tool_says_is_passed_on(make_tool):
    tool = make_tool(fails="checkpoint")
    holder = CheckpointedContext(ToolDriver(str(tool)))
    with pytest.raises(
        ContextReleaseError,
        match=r"cuda-checkpoint --action checkpoint --pid \d+ failed: the driver says no; "
        "everything is on the GPU as before$",
    ):
        holder.suspend()

    assert holder.is_usable()
    tool.unlink()
    assert not holder.is_usable()


class TestWhichWay:
    @pytest.fixture(autouse=True)
    def _machine(self, monkeypatch):
        monkeypatch.setattr(context.sys, "platform", "linux")
        monkeypatch.setattr(torch.version, "cuda", "12.8")
        monkeypatch.setattr(context, "_driver_version", lambda: 12080)
        monkeypatch.setattr(context, "_bindings", lambda: None)
        monkeypatch.setenv("PATH", "/nonexistent")

    def test_the_bindings_come_first(self, monkeypatch, make_tool):
        monkeypatch.setenv("PATH", str(make_tool().parent))
        monkeypatch.setattr(context, "_bindings", Bindings)

        assert isinstance(find_driver(), BoundDriver)

    def test_else_the_tool_on_the_path(self, monkeypatch, make_tool):
        monkeypatch.setenv("PATH", f"{make_tool().parent}:/usr/bin:/bin")

        assert find_driver().state() == "running"

    def test_else_it_says_what_to_install(self):
        with pytest.raises(
            ContextReleaseError, match=r"install cuda-bindings \(pip install cuda-b"
        ):
            find_driver()

    def test_an_old_driver_is_named(self, monkeypatch):
        monkeypatch.setattr(context, "_driver_version", lambda: 12040)
        with pytest.raises(
            ContextReleaseError,
            match=r"^the CUDA context cannot be released: this driver is one for CUDA 12\.4: "
            r"NVIDIA's driver 570 \(CUDA 12\.8\) or later is needed\. Nothing was moved; ",
        ):
            find_driver()

    def test_nvidia_only(self, monkeypatch):
        monkeypatch.setattr(torch.version, "cuda", None)
        with pytest.raises(ContextReleaseError, match="only NVIDIA's driver can do so"):
            find_driver()

    def test_linux_only(self, monkeypatch):
        monkeypatch.setattr(context.sys, "platform", "win32")
        with pytest.raises(ContextReleaseError, match="on Linux only"):
            find_driver()


def test_bindings_without_these_functions_are_none(monkeypatch):
    monkeypatch.setattr(context.importlib, "import_module", lambda name: types.SimpleNamespace())

    assert context._bindings() is None


def test_where_it_cannot_be_nothing_is_moved(monkeypatch, gpu):
    def refuse():
        raise ContextReleaseError("no driver")

    monkeypatch.setattr(context, "simulated_machine", lambda: None)
    monkeypatch.setattr(context, "find_driver", refuse)
    tensor = torch.arange(5.0, device="cuda")
    lender = Courtesy()
    with pytest.raises(ContextReleaseError, match=r"^no driver$"):
        lender.yield_memory(release_context=True)
    with pytest.raises(ContextReleaseError, match=r"^no driver$"):
        Courtesy.on_signal(10, 12, release_context=True)
    with pytest.raises(UsageError, match="gives all GPUs back: leave device out"):
        lender.yield_memory(0, release_context=True)

    assert str(tensor.device) == "cuda:0"
    with pytest.raises(MemlabError, match="nothing to restore"):
        lender.restore()


def test_without_cuda_there_is_no_context_to_give_back():
    assert not torch.cuda.is_initialized()
    lender = Courtesy()
    lender.yield_memory(release_context=True)
    lender.restore()


@pytest.mark.knows_simulation("the simulated context")
def test_a_simulated_gpu_is_given_back_whole():
    with simulate("24GiB", context="500MiB", others="1GiB", count=2):
        tensor = torch.ones(2**20, device="cuda")
        before = torch.cuda.mem_get_info()
        assert before[0] == (23 * 2**10 - 500 - 20) * 2**20
        lender = Courtesy()
        lender.yield_memory()
        assert torch.cuda.mem_get_info()[0] == (23 * 2**10 - 500) * 2**20
        lender.yield_memory(release_context=True)
        assert torch.cuda.mem_get_info(0)[0] == 23 * 2**30
        assert torch.cuda.mem_get_info(1)[0] == 23 * 2**30
        lender.restore()

        assert torch.cuda.mem_get_info() == before
        assert tensor.sum().item() == 2**20


@pytest.mark.knows_simulation("the simulated context")
def test_a_simulated_gpu_without_room_for_the_context():
    with simulate("1GiB", context="500MiB"):
        tensor = torch.ones(5, device="cuda")
        lender = Courtesy()
        lender.yield_memory(release_context=True)
        intruder = torch.empty(800 * 2**20, dtype=torch.uint8, device="cuda")
        with pytest.raises(
            ContextReleaseError, match=r"^no room for the CUDA context of 500\.0 MiB on"
        ):
            lender.restore()

        assert tensor.device.type == "cpu"
        del intruder
        torch.cuda.empty_cache()
        lender.restore()
        assert str(tensor.device) == "cuda:0"
