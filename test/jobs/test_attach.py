"""``attach``: the lines of a process that runs already, from the moment of ``attach`` on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.run_command import ROOT

from pytorch_memlab.cli.main import main
from pytorch_memlab.errors import UsageError
from pytorch_memlab.jobs import attached, requests
from pytorch_memlab.saved import profile_file

PROGRAM = """\
import os, sys, time, torch
{first}
kept = []

def step():
    kept.append(torch.ones(1 << 18, device="cuda"))

def tell(word):
    print(word, flush=True)
    while not os.path.exists(word):
        time.sleep(0.01)

{start}
step()
step()
tell("attach")
step()
tell("detach")
step()
tell("end")
{last}
"""
IMPORT = {
    "first": "import pytorch_memlab.jobs.attachable",
    "start": 'simulation = __import__("pytorch_memlab").simulate("1GiB"); simulation.__enter__()',
}
BESIDE = {"first": "", "start": ""}
MIB = 2**20


class Process:
    """A program that tells where it is, and waits there."""

    def __init__(self, words, parts, last=""):
        Path("program.py").write_text(PROGRAM.format(**parts, last=last))
        self.popen = subprocess.Popen(
            [sys.executable, *words, "program.py"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = str(self.popen.pid)

    def until(self, word):
        line = self.popen.stdout.readline()
        assert line == f"{word}\n", self.popen.stderr.read()

    def go_on(self, word):
        Path(word).touch()

    def ended(self):
        out, err = self.popen.communicate(timeout=120)
        return self.popen.returncode, out, err


@pytest.fixture
def process(write):
    started = []

    def start(*words, parts=IMPORT, last=""):
        started.append(Process(words, parts, last))
        return started[-1]

    yield start
    for one in started:
        one.popen.kill()
        one.popen.communicate()


FILE = Path("job.memlab/rank0.attempt0.json")


def saved():
    return profile_file.load(FILE.read_text(), "the file")


def hits_of(profile):
    """The hits of each line that was recorded, by its text."""
    lines = {}
    for one in profile.entries:
        function = profile.functions[one.code_id]
        lines[function.source[one.line - function.first_line].strip()] = one.hits
    return lines


def peak_of(profile):
    (peak,) = [one.peak_allocated for one in profile.devices if one.device.name == "cuda:0"]
    return peak


def test_lines_are_recorded_from_then_on_also_in_frames_that_run(process, capsys):
    one = process()
    one.until("attach")
    assert main(["attach", "-o", "job.memlab", one.pid]) == 0
    assert capsys.readouterr().err == (
        f"process {one.pid} writes its profile to job.memlab: pytorch-memlab watch job.memlab\n"
    )
    one.go_on("attach")
    one.until("detach")
    assert main(["attach", "--stop", one.pid]) == 0
    assert "recorded no more: memory profile written to" in capsys.readouterr().err
    profile = saved()
    one.go_on("detach")
    one.until("end")
    one.go_on("end")
    assert one.ended() == (0, "", "")
    hits = hits_of(profile)
    # Of the two calls before it there is nothing.
    assert hits['kept.append(torch.ones(1 << 18, device="cuda"))'] == 1
    assert (hits["step()"], hits['tell("detach")']) == (1, 1)
    assert peak_of(profile) == 3 * MIB
    assert profile.runs[0].program.endswith("program.py")
    assert profile.runs[0].exit_status is None
    assert saved() == profile  # nothing was written after the end


@pytest.mark.parametrize(
    ("last", "status", "state"),
    [
        ("", 0, "ended: rank 0"),
        ("raise KeyError(3)", 1, "rank 0 failed first, at .* KeyError: 3"),
        ("sys.exit(3)", 3, "ended: rank 0"),  # no exit handler is told that
    ],
)
def test_a_process_that_ends_writes_the_last_profile(process, capsys, last, status, state):
    one = process(last=last)
    one.until("attach")
    main(["attach", "-o", "job.memlab", one.pid])
    for word in ("attach", "detach"):
        one.go_on(word)
        one.until("detach" if word == "attach" else "end")
    one.go_on("end")
    assert one.ended()[0] == status
    assert peak_of(saved()) == 4 * MIB
    capsys.readouterr()
    assert main(["show", "job.memlab"]) == 0
    assert re.search(state, capsys.readouterr().out)


def test_run_can_be_asked_for_the_profile_that_it_has(process, capsys):
    one = process("-m", "pytorch_memlab", "run", "--gpu", "1GiB", parts=BESIDE)
    one.until("attach")
    assert main(["attach", "-o", "job.memlab", one.pid]) == 0
    one.go_on("attach")
    one.until("detach")
    assert main(["attach", "--stop", one.pid]) == 0
    profile = saved()
    # All that run recorded from the beginning.
    assert hits_of(profile)['kept.append(torch.ones(1 << 18, device="cuda"))'] == 3
    assert peak_of(profile) == 3 * MIB
    one.go_on("detach")
    one.until("end")
    one.go_on("end")
    status, out, _ = one.ended()
    assert (status, "peak 4.0 MiB on cuda:0" in out) == (0, True)
    assert saved() == profile


def test_run_writes_the_end_of_a_process_that_is_attached_to(process):
    one = process("-m", "pytorch_memlab", "run", "--gpu", "1GiB", parts=BESIDE, last="sys.exit(3)")
    one.until("attach")
    main(["attach", "-o", "job.memlab", one.pid])
    for word, following in (("attach", "detach"), ("detach", "end"), ("end", None)):
        one.go_on(word)
        if following:
            one.until(following)
    status, out, _ = one.ended()
    assert (status, saved().runs[0].exit_status, peak_of(saved())) == (3, 3, 4 * MIB)
    assert "peak 4.0 MiB on cuda:0" in out  # the report is printed as without it


def test_a_run_with_a_folder_of_its_own_goes_on_with_it(process, capsys):
    words = ("-m", "pytorch_memlab", "run", "--gpu", "1GiB", "-o", "own.memlab")
    one = process(*words, parts=BESIDE)
    one.until("attach")
    assert main(["attach", "-o", "job.memlab", one.pid]) == 0
    assert "writes its profile to own.memlab" in capsys.readouterr().err
    assert main(["attach", "--stop", one.pid]) == 2
    assert "nothing is attached to it" in capsys.readouterr().err
    assert not Path("job.memlab").exists()


def test_a_process_that_was_killed_is_gone(process, capsys):
    one = process()
    one.until("attach")
    os.kill(int(one.pid), signal.SIGKILL)
    one.popen.wait()
    assert main(["attach", one.pid]) == 2
    assert capsys.readouterr().err == (
        f"pytorch-memlab attach: error: there is no process {one.pid} of this user\n"
    )


def test_a_folder_of_an_older_run_is_refused(process, capsys):
    Path("job.memlab").mkdir()
    Path("job.memlab/job.json").write_text('{"job": "older"}')
    Path("job.memlab/rank0.attempt0.json").write_text("{}")
    one = process()
    one.until("attach")
    assert main(["attach", "-o", "job.memlab", one.pid]) == 2
    assert "has files of an older run" in capsys.readouterr().err
    assert Path("job.memlab/rank0.attempt0.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["12x"], "12x is no number of a process"),
        (["-o", "job", "1"], "job is no name of a folder of a job: end it in .memlab"),
        (["--stop", "999999999"], "nothing is attached to process 999999999"),
    ],
)
def test_what_is_typed_wrong(words, message, capsys):
    assert main(["attach", *words]) == 2
    assert capsys.readouterr().err == f"pytorch-memlab attach: error: {message}\n"


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python 3.14 lets anybody in")
def test_a_process_without_a_way_in_says_what_makes_one(capsys):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert main(["attach", str(other.pid)]) == 2
        other.kill()
    error = capsys.readouterr().err
    assert "put the line `import pytorch_memlab.jobs.attachable` into the program" in error


def test_work_waits_until_the_program_is_outside_of_the_package(monkeypatch):
    within = iter([True, True, False])
    monkeypatch.setattr(attached, "is_within_package", lambda _frame: next(within))
    done = []
    thread = threading.Thread(target=attached.in_main_thread, args=[lambda: done.append(1)])
    thread.start()
    while thread.is_alive():
        pass
    assert (done, next(within, "no more")) == ([1], "no more")


def test_a_main_thread_within_a_long_call_is_said_and_the_work_never_comes_late(monkeypatch):
    monkeypatch.setattr(attached, "PATIENCE", 0.2)
    sent, errors, done = [], [], []
    # Python calls it when the main thread comes back: here after everything else.
    monkeypatch.setattr(attached._Request, "send", lambda request: sent.append(request))

    def ask():
        try:
            attached.in_main_thread(lambda: done.append(1))
        except UsageError as error:
            errors.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert errors == ["its main thread is within a long call: try again"]
    assert sent[0]._call(None) == 0
    assert done == []


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
def test_a_folder_that_others_can_write_to_is_not_trusted(monkeypatch, tmp_path):
    monkeypatch.setattr(requests.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / f"pytorch-memlab-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(UsageError, match="is not a folder of this user alone"):
        requests.Listening(lambda request: request)
    folder.chmod(0o700)
    before = set(threading.enumerate())
    listening = requests.Listening(lambda request: {"got": request})
    assert requests.ask(os.getpid(), {"do": 1}) == {"got": {"do": 1}}
    listening.close()
    with pytest.raises(requests.NotListeningError):
        requests.ask(os.getpid(), {})
    assert not folder.exists()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.skipif(os.name != "posix", reason="sockets in a folder")
def test_the_folder_of_sockets_stays_for_others_and_is_made_again_for_the_next(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(requests.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / f"pytorch-memlab-{os.getuid()}"
    unlink, removals = Path.unlink, [folder.rmdir, folder.rmdir]

    def unlink_and_remove(path, **options):  # as a process that ends at this moment does
        unlink(path, **options)
        removals.pop()() if removals else None

    monkeypatch.setattr(Path, "unlink", unlink_and_remove)
    listening = requests.Listening(lambda request: {})
    (folder / "another").touch()
    listening.close()

    assert (removals, [path.name for path in folder.iterdir()]) == ([], ["another"])
