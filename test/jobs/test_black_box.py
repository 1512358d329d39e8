"""The file of a process in the folder of its job: kept up to date, whole, and true at the end."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from textwrap import dedent

import pytest
from support.run_command import command

from pytorch_memlab._common.process import main_program
from pytorch_memlab.jobs import black_box

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

FILE = Path("job.memlab/rank0.attempt0.json")

START = """\
import ctypes, os, resource, signal, subprocess, sys, time, torch
FILE = "job.memlab/rank0.attempt0.json"

def work(n):
    return torch.ones(n << 18, device="cuda")

def until(there):
    while not there():
        time.sleep(0.01)

def has_peak(mebibytes):
    return lambda: f'"peak_allocated":{mebibytes << 20}' in open(FILE).read()

kept = work(1)
until(lambda: os.path.exists(FILE))
"""


def run(write, middle, *options):
    return command("-o", "job.memlab", *options, write(START + dedent(middle)))


def saved():
    return json.loads(FILE.read_text())


def test_a_killed_process_leaves_its_last_file_which_has_no_end(write):
    done = run(
        write,
        "kept = None; kept = work(3)\nuntil(has_peak(3))\nos.kill(os.getpid(), 9)",
        "--save-every",
        "1",
    )

    assert done.returncode == -signal.SIGKILL
    run_ = saved()["runs"][0]
    assert (run_["exit_status"], run_["exception"]) == (None, "")
    assert run_["written"].startswith("20")
    assert run_["save_every"] == 1
    assert run_["last_line"] in ("script.py:8", "script.py:9", "script.py:11")  # in ``until``
    assert saved()["devices"][0]["peak_allocated"] == 3 << 20
    assert saved()["history"] is None


ENDS = {
    "exit": ("sys.exit(7)", 7, "", ""),
    "end": ("", 0, "", ""),
    "_exit": ("os._exit(3)", 3, "", ""),
    "exception": ("work(2)\nraise ValueError('bad')", 1, "ValueError: bad", "script.py:17"),
    "SIGTERM": ("os.kill(os.getpid(), 15)\nwork(1)", 143, "SIGTERM", "script.py:16"),
    "SIGHUP": ("os.kill(os.getpid(), 1)\nwork(1)", 129, "SIGHUP", "script.py:16"),
}


@pytest.mark.parametrize("end", ENDS)
def test_each_other_end_is_in_the_file(end, write):
    middle, status, exception, line = ENDS[end]

    run(write, middle, "--save-every", "1")

    run_ = saved()["runs"][0]
    assert (run_["exit_status"], run_["exception"]) == (status, exception)
    assert run_["last_line"] == line


def test_sigusr1_asks_for_the_file_and_the_program_goes_on(write):
    start = START.replace("until(lambda", "os.kill(os.getpid(), signal.SIGUSR1)\nuntil(lambda")
    script = write(
        start + "assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL\n"
        "os.rename(FILE, 'asked')\nprint('went on')\n"
    )

    done = command("-o", "job.memlab", "--save-every", "9999", script)

    assert (done.returncode, done.stdout) == (0, "went on\n")
    assert json.loads(Path("asked").read_text())["runs"][0]["exit_status"] is None
    assert saved()["runs"][0]["exit_status"] == 0


def test_sigusr1_is_answered_while_the_main_thread_waits_in_c(write):
    start = START.replace("until(lambda", "'''") + "'''\n"
    script = write(
        start
        + dedent("""\
        subprocess.Popen(["sh", "-c", f"kill -USR1 {os.getpid()}; while ! [ -e {FILE} ];"
            f" do sleep 0.01; done; kill -KILL {os.getpid()}"])
        mutex, lock = ctypes.create_string_buffer(64), ctypes.CDLL(None).pthread_mutex_lock
        lock(mutex)
        lock(mutex)  # such a wait is not interrupted
        """)
    )

    done = command("-o", "job.memlab", "--save-every", "9999", script)

    assert done.returncode == -signal.SIGKILL
    assert saved()["devices"][0]["peak_allocated"] == 1 << 20


def test_the_handler_of_the_program_goes_before(write):
    start = START.replace("until(lambda", "'''") + "'''\n"
    script = write(
        start
        + dedent("""\
        signal.signal(signal.SIGUSR1, lambda number, frame: print("its own"))
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.1)
        assert not os.path.exists(FILE)
        """)
    )

    done = command("-o", "job.memlab", "--save-every", "9999", script)

    assert (done.returncode, done.stdout) == (0, "its own\n")


def test_a_full_disk_leaves_the_last_file_and_is_told_once(write):
    middle = """\
        sys.dont_write_bytecode = True  # half a file of byte code would stay
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        kept = None; kept = work(3)
        time.sleep(2.5)
        assert not has_peak(3)()
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        until(has_peak(3))
        os.kill(os.getpid(), 9)
        """
    done = run(write, middle, "--save-every", "1")

    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stderr.count("cannot write job.memlab/rank0.attempt0.json: File too large") == 1
    assert saved()["devices"][0]["peak_allocated"] == 3 << 20
    assert sorted(os.listdir("job.memlab")) == ["job.json", "rank0.attempt0.json"]


def test_a_disk_that_is_full_at_the_end_is_an_exit_code_and_a_report(write):
    done = run(
        write,
        "sys.dont_write_bytecode = True; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))",
        "--save-every",
        "1",
    )

    assert done.returncode == 1
    assert "cannot write job.memlab/rank0.attempt0.json: File too large" in done.stderr
    assert done.stdout.startswith("peak 1.0 MiB on cuda:0")


def test_a_private_file_has_no_folder(write):
    run(write, "raise ValueError('secret')", "--save-every", "1", "--private")

    assert saved()["runs"][0]["exception"] == "ValueError"
    assert saved()["runs"][0]["last_line"] == "script.py:16"
    assert os.getcwd() not in FILE.read_text()


def test_the_end_of_a_run_has_its_history_and_what_was_decorated(write):
    middle = """\
        @profile
        def decorated():
            return work(2)
        held = decorated()
        until(has_peak(3))
        os.rename(FILE, "before")
        """
    run(write, middle, "--save-every", "1", "--history")

    before = json.loads(Path("before").read_text())
    for profile in (before, saved()):
        assert "decorated" in [function["qual_name"] for function in profile["functions"]]
    assert before["history"] is None
    assert saved()["history"] is not None


def test_tables_are_not_read_while_a_thread_is_within_this_package():
    assert not black_box._is_measuring()
    goes_on, waits = threading.Event(), threading.Thread(target=lambda: goes_on.wait())
    waits.start()
    thread = threading.Thread(target=lambda: main_program.join_other_threads(others))
    others = [each for each in threading.enumerate() if each is not waits]
    thread.daemon = True
    thread.start()
    try:
        while not black_box._is_measuring():
            pass
    finally:
        goes_on.set()
    thread.join()
    assert not black_box._is_measuring()


def test_other_processes_that_start_in_between_are_left_alone(write):
    middle = """\
        if os.fork() == 0:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(9)
        number, status = os.wait()
        print(os.WTERMSIG(status))
        """
    done = run(write, middle, "--save-every", "1")

    assert (done.returncode, done.stdout) == (0, f"{int(signal.SIGUSR1)}\n")
