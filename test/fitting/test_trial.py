"""A trial runs a program in another process, and tells all of how it ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from fit_programs import LOOP, MIB, kept, trial_of
from support.trials import run_trial

from pytorch_memlab.errors import UsageError
from pytorch_memlab.fitting import child
from pytorch_memlab.fitting.change import Change
from pytorch_memlab.fitting.target import FunctionTarget, ProgramTarget
from pytorch_memlab.fitting.trial import Ending, Settings, TrialRequest
from pytorch_memlab.fitting.trial_run import run_all
from pytorch_memlab.simulation.hardware.presets import find_gpu

A100 = find_gpu("a100")


class OfMiB(Change):
    """A change in all ways that there are."""

    name = "changed"

    def arguments(self, argv):
        return (*argv, "--argument=1")

    def environment(self):
        return {"OF_ENVIRONMENT": "2"}

    @contextmanager
    def applied(self):
        sys.of_process = 4
        yield


def test_changes_reach_arguments_environment_and_process(tmp_path):
    text = """
        import os, sys, torch
        argument = int(sys.argv[1].removeprefix("--argument="))
        size = argument + int(os.environ["OF_ENVIRONMENT"]) + sys.of_process
        kept = torch.zeros(size * 2**20, dtype=torch.uint8, device="cuda")
    """
    trial = trial_of(text, tmp_path, changes=(OfMiB(),))
    assert trial.error == ""
    assert kept(trial) == 7
    assert "OF_ENVIRONMENT" not in os.environ
    assert not hasattr(sys, "of_process")


def test_nothing_of_a_trial_stays_here(tmp_path, capfd):
    before = sys.argv.copy(), sys.path.copy(), os.environ.copy(), sys.modules["__main__"]
    output = tmp_path / "output.txt"
    text = """
        import atexit, os, sys, torch
        print("out", sys.stdin.read() == "")
        os.system("echo from the shell")
        print("err", file=sys.stderr)
        atexit.register(print, "at exit")
        torch.zeros(1).cuda()
    """
    path = tmp_path / "p.py"
    path.write_text("\n".join(line.strip() for line in text.splitlines()))
    trial = run_trial(ProgramTarget(str(path)), A100, output=str(tmp_path))
    assert trial.ending is Ending.FINISHED
    assert capfd.readouterr() == ("", "")
    assert output.read_text() == "out True\nfrom the shell\nerr\nat exit\n"
    assert (sys.argv, sys.path, os.environ, sys.modules["__main__"]) == before
    assert not torch.cuda.is_available()


def test_an_error_has_the_traceback_of_the_program_alone(tmp_path):
    trial = trial_of("\ndef f():\n    raise KeyError('lost')\n\nf()\n", tmp_path)
    path = tmp_path / "program.py"
    assert trial.ending is Ending.ERROR
    lines = [line for line in trial.error.splitlines() if "^" not in line]
    assert lines == [
        "Traceback (most recent call last):",
        f'  File "{path}", line 5, in <module>',
        "    f()",
        f'  File "{path}", line 3, in f',
        "    raise KeyError('lost')",
        "KeyError: 'lost'",
    ]


def test_an_error_in_a_module_names_no_frame_of_this_package(tmp_path):
    text = """
    import torch

    class Net(torch.nn.Module):
        def forward(self, x):
            return x.view(3)

    Net()(torch.zeros(2, device="cuda"))
    """
    trial = trial_of(dedent(text), tmp_path)
    files = re.findall(r'File "(.*)", line (\d+)', trial.error)
    program = str(tmp_path / "program.py")
    assert [line for file, line in files if file == program] == ["8", "6"]
    assert {Path(file).name for file, _ in files} == {"program.py", "module.py"}


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("sys.exit(4)", "the program ended with exit status 4\n"),
        ("sys.exit('no data')", "the program ended with exit status 1: no data\n"),
        ("os._exit(5)", "the process of the program ended with exit status 5\n"),
        (
            f"os.kill(os.getpid(), {int(signal.SIGKILL)})",
            f"the process of the program ended with signal {int(signal.SIGKILL)}\n",
        ),
    ],
)
def test_a_program_that_ends_itself_says_how(line, error, tmp_path):
    trial = trial_of(f"import os, sys\n{line}\n", tmp_path)
    assert trial.ending is Ending.ERROR
    assert trial.error == error


def test_the_message_of_an_exit_is_printed(tmp_path):
    trial_of("import sys; sys.exit('no data')", tmp_path, output=str(tmp_path))
    assert (tmp_path / "output.txt").read_text() == "no data\n"


def test_a_process_that_the_program_forks_leaves_its_result_alone(tmp_path):
    """The fork ends when the result of the program is written."""
    text = """
        import atexit, os, sys, torch
        reads, writes = os.pipe()
        fork = os.fork()
        if not fork:
            os.read(reads, 1)
            sys.exit(0)
        kept = torch.zeros(3 * 2**20, dtype=torch.uint8, device="cuda")
        atexit.register(os.waitpid, fork, 0)
        atexit.register(os.write, writes, b"x")
    """
    assert kept(trial_of(text, tmp_path)) == 3


def test_a_process_that_ignores_how_its_children_end_gets_results(tmp_path):
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert trial_of("", tmp_path).ending is Ending.FINISHED
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_an_exit_with_code_zero_is_an_end(tmp_path):
    assert trial_of("raise SystemExit(0)", tmp_path).ending is Ending.FINISHED


def test_a_program_that_ends_its_process_with_code_zero_is_at_its_end(tmp_path):
    text = """
        import os, torch
        if not os.fork():
            os._exit(0)
        kept = torch.zeros(3 * 2**20, dtype=torch.uint8, device="cuda")
        os._exit(0)
    """
    trial = trial_of(text, tmp_path)
    assert trial.ending is Ending.FINISHED
    assert kept(trial) == 3


@pytest.mark.parametrize("end", ["", "sys.exit()"])
def test_threads_of_the_program_come_to_their_end(end, tmp_path):
    text = f"""
        import sys, threading, time, torch
        tensors = []
        def work():
            time.sleep(0.2)
            tensors.append(torch.zeros(3 * 2**20, dtype=torch.uint8, device="cuda"))
        threading.Thread(target=work).start()
        {end}
    """
    assert kept(trial_of(text, tmp_path)) == 3


def test_threads_that_threads_start_come_to_their_end(tmp_path):
    text = """
        import threading, time, torch
        tensors = []
        def work(then):
            time.sleep(0.2)
            tensors.append(torch.zeros(3 * 2**20, dtype=torch.uint8, device="cuda"))
            then()
        inner = threading.Thread(target=work, args=(lambda: None,))
        threading.Thread(target=work, args=(inner.start,)).start()
    """
    assert kept(trial_of(text, tmp_path)) == 6


def test_the_gpu_has_no_limit_and_the_memory_of_one_has(tmp_path):
    text = """
        import torch
        kept = torch.empty(2**40, dtype=torch.uint8, device="cuda")
    """
    assert kept(trial_of(text, tmp_path)) == 2**20
    trial = trial_of(text, tmp_path, is_limited=True)
    assert trial.ending is Ending.OUT_OF_MEMORY
    assert "Tried to allocate 1024.00 GiB" in trial.error


@pytest.mark.parametrize(
    ("code", "reads"),
    [
        ("x = torch.empty(8, device='cuda')", set()),
        ("torch.cuda.get_device_properties(0).major", {"major"}),
        ("torch.cuda.get_device_capability()", {"major", "minor"}),
        ("torch.cuda.get_device_properties(0).L2_cache_size", {"l2_cache_size"}),
        ("torch.cuda.get_device_name()", {"name"}),
        ("torch.cuda.get_device_properties(0).total_memory", {"total_memory"}),
        ("torch.cuda.mem_get_info()", {"total_memory"}),
        ("torch.cuda.set_per_process_memory_fraction(0.5)", {"total_memory"}),
    ],
)
def test_a_trial_tells_what_it_asked_of_the_gpu(code, reads, tmp_path):
    assert trial_of(f"import torch\n{code}\n", tmp_path).gpu_reads == reads


@pytest.mark.usefixtures("new_pythons")
def test_where_processes_cannot_be_forked_a_new_python_runs_the_program(tmp_path, monkeypatch):
    forked = trial_of(LOOP, tmp_path)
    monkeypatch.setattr(child, "can_fork", lambda: False)
    started = trial_of(LOOP, tmp_path)
    assert started.ending is Ending.SETTLED
    assert started.step_peaks == forked.step_peaks
    assert started.gpu_reads == forked.gpu_reads


def test_a_new_python_runs_functions_of_the_program_and_what_they_use(monkeypatch):
    width = 2**20

    def step():
        return torch.zeros(width, device="cuda")

    step.__module__ = "__main__"
    monkeypatch.setattr(child, "can_fork", lambda: False)
    trial = run_trial(FunctionTarget(step), A100)
    assert trial.ending is Ending.SETTLED, trial.error
    sizes = {event.size for event in trial.history.devices[0].events if event.action == "alloc"}
    assert sizes == {4 * MIB}


@pytest.mark.usefixtures("new_pythons")
def test_a_function_that_no_other_process_can_get_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(child, "can_fork", lambda: False)
    with (tmp_path / "log").open("w") as file:
        pattern = r"^a new Python has to run the function, .*: make what it uses in the function"
        with pytest.raises(UsageError, match=pattern):
            run_trial(FunctionTarget(lambda: file.write("")), A100)


def refuses(_self):
    raise RuntimeError("Unable to handle autograd's threading in combination with fork-based")


@pytest.mark.usefixtures("new_pythons")
def test_a_new_python_in_place_of_a_fork_may_end_without_a_result(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.Tensor, "backward", refuses)
    trial = trial_of("import os\nos._exit(5)\n", tmp_path)
    assert trial.error == "the process of the program ended with exit status 5\n"


def test_a_process_whose_forks_cannot_train_starts_a_new_python(monkeypatch):
    def step():
        weight = torch.zeros(2**20, device="cuda", requires_grad=True)
        weight.sum().backward()

    class Counted(child._NewPython):
        def __init__(self, work, result):
            started.append(work)
            super().__init__(work, result)

    started = []
    monkeypatch.setattr(child, "_NewPython", Counted)
    forked = run_trial(FunctionTarget(step), A100)
    begun = len(started)
    assert forked.ending is Ending.SETTLED
    # In a build for CUDA, forks cannot train once their parent has, as tests before this one do.
    assert not begun or sys.platform != "linux" or torch.version.cuda
    monkeypatch.setattr(torch.Tensor, "backward", refuses)
    trial = run_trial(FunctionTarget(step), A100)
    assert (trial.ending, trial.step_peaks) == (Ending.SETTLED, forked.step_peaks), trial.error
    assert len(started) == begun + 1


def test_trials_that_still_run_end_with_the_one_who_asked(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(
        "import os, sys, time\n"
        f"open({str(tmp_path)!r} + '/' + sys.argv[1], 'w').write(str(os.getpid()))\n"
        "time.sleep(0 if sys.argv[1] == 'short' else 600)\n"
    )
    requests = [
        TrialRequest(ProgramTarget(str(path), (length,)), A100, Settings(allow_writes=True))
        for length in ("short", "long")
    ]
    trials = run_all(requests, 2)
    index, trial = next(trials)
    assert (index, trial.ending) == (0, Ending.FINISHED)
    while not (tmp_path / "long").exists() or not (tmp_path / "long").read_text():
        pass
    trials.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "long").read_text()), 0)


@pytest.mark.skipif(not child.can_fork(), reason="new Pythons are not ended")
def test_trials_end_with_a_process_that_is_killed(tmp_path):
    path = tmp_path / "program.py"
    path.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    run = (
        "from pytorch_memlab.fitting.target import ProgramTarget\n"
        "from pytorch_memlab.fitting.trial import Settings, TrialRequest\n"
        "from pytorch_memlab.fitting.trial_run import run\n"
        "from pytorch_memlab.simulation.hardware.presets import find_gpu\n"
        f"settings = Settings(output={str(tmp_path)!r})\n"
        f"run(TrialRequest(ProgramTarget({str(path)!r}), find_gpu('a100'), settings))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", run])
    output = tmp_path / "output.txt"
    while not output.exists() or not output.read_text().endswith("\n"):
        assert process.poll() is None
    process.kill()
    process.wait()
    assert _ends(int(output.read_text()))


def _ends(process):
    """True once a process is gone, or a zombie of a parent that does not ask for it."""
    for _ in range(6000):
        try:
            status = Path(f"/proc/{process}/stat").read_text()
        except OSError:
            return True
        if status.rpartition(")")[2].split()[0] in "ZX":
            return True
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    return False


def test_a_tensor_of_more_than_any_gpu_has_fits_nowhere(tmp_path):
    text = """
        import torch
        kept = torch.empty(2**48, dtype=torch.uint8, device="cuda")
    """
    trial = trial_of(text, tmp_path)
    assert trial.ending is Ending.OUT_OF_MEMORY
    assert trial.history.devices[0].events[-1].size == 2**48
    assert MIB * kept(trial) == 0


@pytest.mark.parametrize("computes", [False, True])
def test_a_trial_leaves_no_new_files(tmp_path, monkeypatch, computes):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.txt").write_text("old")
    text = """
        import os, pathlib, torch
        os.makedirs("runs/first")
        pathlib.Path("runs/first/log.txt").write_text("1")
        pathlib.Path("old.txt").write_text("changed")
        tensor = torch.arange(2.0, device="cuda")
        torch.save(tensor, "runs/last.pt")
        assert os.listdir("runs/first") == ["log.txt"]
        assert pathlib.Path("old.txt").read_text() == "changed"
        assert torch.load("runs/last.pt").shape == (2,)
    """
    path = tmp_path / "writes.py"
    path.write_text(dedent(text))
    request = TrialRequest(ProgramTarget(str(path)), A100, Settings(), computes=computes)
    [(_, trial)] = run_all([request])
    assert (trial.ending, trial.error) == (Ending.FINISHED, "")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["old.txt", "writes.py"]
    assert (tmp_path / "old.txt").read_text() == "old"
