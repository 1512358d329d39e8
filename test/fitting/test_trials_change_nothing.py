"""A trial asks for nothing, prints nothing, and changes nothing outside; what stops it is named."""

from __future__ import annotations

import re
import socket

import pytest
from support.trials import run_trial

from pytorch_memlab.advice.trial_records import TrialProgram
from pytorch_memlab.advice.trials import advice_without_error
from pytorch_memlab.fitting.target import ProgramTarget
from pytorch_memlab.fitting.trial import Ending, Settings
from pytorch_memlab.simulation.inspect import find_gpu

USES_GPU = "import torch\nkept = torch.ones(2**20, device='cuda')\n"

WRITES = """\
import os, pathlib, subprocess, sys
subprocess.run(["touch", "by_touch"], check=True)
subprocess.run("mkdir by_mkdir && touch by_mkdir/inside", shell=True, check=True)
subprocess.run([sys.executable, "-c", "open('by_python', 'w').write('x')"], check=True)
os.system("tee by_tee < /dev/null")
pathlib.Path("by_itself").write_text("x")
assert sorted(os.listdir()) == [
    "by_itself", "by_mkdir", "by_python", "by_tee", "by_touch", "program.py"
]
"""


def trial_of(folder, monkeypatch, text):
    (folder / "program.py").write_text(USES_GPU + text)
    monkeypatch.chdir(folder)
    return run_trial(ProgramTarget("program.py"), find_gpu("1GiB"))


def test_files_of_the_processes_that_a_trial_starts_are_gone(tmp_path, monkeypatch):
    trial = trial_of(tmp_path, monkeypatch, WRITES)
    assert trial.error == ""
    assert trial.ending is Ending.FINISHED
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


WORKERS = """\
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.ones(8, 2**10)), 2, num_workers=1)
shapes = [tuple(batch.cuda().shape) for [batch] in loader]
assert shapes == [(2, 2**10)] * 4, shapes
"""

SOCKETS = """\
import errno, os, socket
server = socket.socket(socket.AF_UNIX)
server.bind("by_path")
server.listen()
assert server.getsockname() == "by_path"
client = socket.socket(socket.AF_UNIX)
client.connect("by_path")
client.sendall(b"sent")
assert server.accept()[0].recv(4) == b"sent"
assert os.listdir() == ["program.py", "by_path"], os.listdir()
try:
    socket.socket(socket.AF_UNIX).bind("by_path")
except OSError as error:
    assert error.errno == errno.EADDRINUSE
assert socket.socket(socket.AF_UNIX).connect_ex("by_nobody") == errno.ENOENT
os.unlink("by_path")
socket.socket(socket.AF_UNIX).bind("by_path")
"""


def test_workers_of_a_loader_send_their_tensors_to_a_trial(tmp_path, monkeypatch):
    trial = trial_of(tmp_path, monkeypatch, WORKERS)
    assert trial.error == ""
    assert trial.ending is Ending.FINISHED


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="sockets have no paths here")
def test_sockets_of_a_trial_have_paths_and_are_gone_after_it(tmp_path, monkeypatch):
    trial = trial_of(tmp_path, monkeypatch, SOCKETS)
    assert trial.error == ""
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


def test_a_trial_prints_nothing_and_reads_nothing(tmp_path, monkeypatch, capfd):
    text = "import os, sys\nprint('out')\nos.write(2, b'err')\nassert sys.stdin.read() == ''\n"
    assert trial_of(tmp_path, monkeypatch, text).error == ""
    assert capfd.readouterr() == ("", "")


def port_in_use(server):
    port = server.getsockname()[1]
    return f"import socket\nsocket.socket().bind(('127.0.0.1', {port}))\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name = input('name? ')\n", "fails at program.py:3: EOFError: EOF when reading a line"),
        (None, "fails at program.py:4: OSError: .* Address already in use"),
        (
            "import subprocess\nsubprocess.run(['made-up-tool', 'x'])\n",
            "fails at program.py:4: .*CommandRefusedError: made-up-tool x was not started: .*",
        ),
        ("import os\nos.abort()\n", "fails: the process of the program ended with signal 6"),
        ("import os\nos._exit(3)\n", "fails: the process of the program ended with exit status 3"),
        (
            "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n",
            "the process of the trials ended with signal 9",
        ),
    ],
    ids=["input", "port", "command", "abort", "exit", "killed"],
)
def test_what_stops_the_trials_is_named(tmp_path, text, reason):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        path = tmp_path / "program.py"
        path.write_text(USES_GPU + (port_in_use(server) if text is None else text))
        program = TrialProgram(
            ProgramTarget(str(path)), find_gpu("1GiB"), Settings(), str(tmp_path)
        )
        advice = advice_without_error(program, 250)
    assert advice.remedies == ()
    if not reason.startswith("the process"):
        reason = f"a second run of the program {reason}"
    assert re.fullmatch(reason, advice.untried)


def test_a_folder_that_is_gone_is_named(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(USES_GPU)
    program = TrialProgram(ProgramTarget(str(path)), find_gpu("1GiB"), Settings(), "/nowhere")
    advice = advice_without_error(program, 250)
    assert advice.untried.startswith("the process of the trials ended with exit status 1: FileNot")
