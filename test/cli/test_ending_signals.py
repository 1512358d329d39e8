"""A signal that ends a program leaves its report and its files, and ends it as before."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import psutil
import pytest
from support.run_command import ROOT, command, python

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

START = """\
import atexit, ctypes, os, signal, subprocess, sys, threading, torch

def work():
    return torch.ones(1 << 18, device="cuda")

def killed_by_another_process(number=signal.SIGTERM):
    subprocess.run(["sh", "-c", f"kill -{int(number)} {os.getpid()}"])

def soon_killed(number=signal.SIGTERM):
    # The other process signals once this one has closed its end of the pipe.
    reading, writing = os.pipe()
    script = f"read line; kill -{int(number)} {os.getpid()}"
    subprocess.Popen(["sh", "-c", script], stdin=reading)
    os.close(reading)
    os.close(writing)

kept = work()
atexit.register(lambda: print("exit handler"))
"""
END = """\
print("went on")
"""


def program(middle, start=START, end=END):
    return start + dedent(middle).rstrip() + "\n" + end


FILES = ["out.json", "out.txt", "out.html", "out.pickle", "out.svg"]
OUTPUTS = [argument for name in FILES for argument in ("-o", name)]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_all_files_are_written_and_the_parent_sees_the_signal(name, write):
    script = write(program(f"killed_by_another_process(signal.{name})\n"))

    ours = command(*OUTPUTS, script)

    assert ours.returncode == -getattr(signal, name)
    assert ours.stdout == ""  # no code of the program ran after the signal
    run = json.loads(Path("out.json").read_text())["runs"][0]
    assert (run["exit_status"], run["exception"]) == (128 + getattr(signal, name), name)
    with open("out.pickle", "rb") as file:
        assert len(pickle.load(file)["device_traces"][0]) > 0
    assert "script.py:4 in work" in Path("out.txt").read_text()
    assert Path("out.html").read_text().rstrip().endswith("</html>")
    assert Path("out.svg").read_text().rstrip().endswith("</svg>")


def test_without_files_the_report_is_printed_after_what_the_program_printed(write):
    done = command(write(program("print('begun'); killed_by_another_process()\n")))

    assert done.returncode == -signal.SIGTERM
    assert done.stdout.startswith("begun\npeak 1.0 MiB on cuda:0")
    assert "## work" in done.stdout
    assert "exit handler" not in done.stdout


ENDS = {
    "a signal": "killed_by_another_process()",
    "os._exit": "os._exit(0)",
    "another program": "os.execv('/bin/true', ['true'])",
}


@pytest.mark.parametrize("how", ENDS)
def test_no_socket_stays_in_the_folder_of_temporary_files(how, write, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    sockets = tmp_path / f"pytorch-memlab-{os.getuid()}"
    own = f"{str(sockets)!r} + '/' + str(os.getpid())"
    script = write(program(f"print({own}, os.path.exists({own}), flush=True); {ENDS[how]}"))

    done = command("-o", "out.txt", script)

    socket, existed = done.stdout.split()
    assert existed == "True"
    assert not os.path.exists(socket)


WAITS = {
    "in a join": "thread = threading.Thread(target=signal.pause, daemon=True); thread.start();"
    " soon_killed(); thread.join()",
    "for a lock": "lock = threading.Lock(); lock.acquire(); soon_killed(); lock.acquire()",
    "for a signal": "soon_killed(); signal.pause()",
    "in C": """\
import pytorch_memlab.cli.ending_signals as ours
ours._PATIENCE = 0.01
mutex, lock = ctypes.create_string_buffer(64), ctypes.CDLL(None).pthread_mutex_lock
lock(mutex)
soon_killed()
lock(mutex)  # such a wait is not interrupted
""",
    "in an import": """\
import pytorch_memlab.cli.ending_signals as ours
ours._PATIENCE = 0.01
open("waits.py", "w").write("import __main__; __main__.soon_killed(); __main__.signal.pause();"
    "__main__.signal.sigwait([])")
import waits
""",
    "for workers": """\
def wait_for_ever(_items):
    signal.pause()
from torch.utils.data import DataLoader
soon_killed()
next(iter(DataLoader(range(4), num_workers=2, collate_fn=wait_for_ever)))
""",
    "in a backward hook": "x = kept.requires_grad_(); y = x * 2;"
    " y.register_hook(lambda _: killed_by_another_process()); y.sum().backward()",
    "in an exit handler": "atexit.register(killed_by_another_process); sys.exit()",
    "in a thread's last work": "threading.Thread(target=killed_by_another_process).start();"
    " sys.exit()",
    "in a finally": "try: killed_by_another_process()\nfinally: print('finally')",
    "in a handler of everything": "try: killed_by_another_process()\n"
    "except BaseException: print('caught')",
    "of itself": "os.kill(os.getpid(), signal.SIGTERM)",
    "from a thread to itself": "thread = threading.Thread(target=signal.raise_signal,"
    " args=(signal.SIGTERM,)); thread.start(); thread.join(); signal.pause()",
    "after its own handler gave up": """\
def handler(number, frame):
    print("last words", flush=True)
    signal.signal(number, before)
    signal.raise_signal(number)
before = signal.signal(signal.SIGTERM, handler)
assert before is signal.SIG_DFL and signal.getsignal(signal.SIGTERM) is handler
killed_by_another_process()
""",
    "after an event loop had a handler": """\
import asyncio
async def main():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, print)
    loop.remove_signal_handler(signal.SIGTERM)
asyncio.run(main())
assert signal.set_wakeup_fd(-1) == -1
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
killed_by_another_process()
""",
    "in a program that forks": """\
child = os.fork()
if child == 0:
    signal.raise_signal(signal.SIGTERM)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
killed_by_another_process()
""",
}


@pytest.mark.parametrize("how", WAITS)
def test_a_program_that_waits(how, write):
    script = write(program(WAITS[how]))

    done = command("-o", "out.txt", script)

    assert done.returncode == -signal.SIGTERM, done.stderr
    assert done.stdout == ("last words\n" if "handler gave up" in how else ""), done.stderr
    peak = "2.0" if "backward" in how else "1.0"
    assert f"peak {peak} MiB on cuda:0" in Path("out.txt").read_text()
    assert done.stderr.count("memory profile written") == 1


OWN_ENDS = {
    "sys.exit": ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))", 5),
    "an error": ("signal.signal(signal.SIGTERM, lambda *_: 1 / 0)", 1),
    "os._exit": ("signal.signal(signal.SIGTERM, lambda *_: os._exit(6))", 6),
    "nothing": ("signal.signal(signal.SIGTERM, lambda *_: None)", 0),
    "ignored": ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", 0),
}


@pytest.mark.parametrize("how", OWN_ENDS)
def test_a_programs_own_handler_decides(how, write):
    setting, status = OWN_ENDS[how]
    done = command("-o", "out.txt", write(program(f"{setting}\nkilled_by_another_process()\n")))

    assert done.returncode == status
    assert ("went on" in done.stdout) == (status == 0)
    assert ("exit handler" in done.stdout) == (how != "os._exit")
    assert "peak 1.0 MiB on cuda:0" in Path("out.txt").read_text()


def test_an_event_loops_handler_runs(write):
    script = write(
        program(
            """\
            import asyncio
            async def main():
                over = asyncio.Event()
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
                soon_killed()
                await over.wait()
            asyncio.run(main())
            """
        )
    )

    done = command("-o", "out.txt", script)

    assert (done.returncode, done.stdout) == (0, "went on\nexit handler\n")
    assert "Traceback" not in done.stderr


def test_what_nohup_ignores_stays_ignored(write):
    script = write(program("killed_by_another_process(signal.SIGHUP)\n"))
    command_line = [sys.executable, "-m", "pytorch_memlab", "run", "-o", "out.txt", script]

    done = subprocess.run(
        ["nohup", *command_line],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stdout) == (0, "went on\nexit handler\n")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "ends", ["os._exit(7)", "os.kill(os.getpid(), 15)", "os.killpg(os.getpgid(0), 15)"]
)
def test_an_error_of_a_thread_that_ends_the_process(ends, write):
    script = write(
        program(
            f"""\
            os.setpgid(0, 0)
            threading.excepthook = lambda args: {ends}
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start()
            thread.join()
            signal.pause()
            """
        )
    )

    done = command("-o", "out.txt", script)

    assert done.returncode == (7 if "_exit" in ends else -signal.SIGTERM)
    assert "peak 1.0 MiB on cuda:0" in Path("out.txt").read_text()


# A function that the report calls waits for a second process.
IN_THE_REPORT = """\
import pytorch_memlab.cli.run.program_profile as ours
inherited = ours.results_of
def results_of(*args, **kwargs):
    {what}
    return inherited(*args, **kwargs)
ours.results_of = results_of
"""


@pytest.mark.parametrize("first", ["", "killed_by_another_process()", "raise KeyError"])
@pytest.mark.parametrize("second", ["SIGTERM", "SIGHUP"])
def test_a_signal_while_the_report_is_made_waits_for_its_end(first, second, write):
    what = f"killed_by_another_process(signal.{second})"
    script = write(program(IN_THE_REPORT.format(what=what) + first + "\n"))

    done = command("-o", "out.txt", "-o", "out.pickle", script)

    ended_by = "SIGTERM" if "killed" in first else second
    assert done.returncode == -getattr(signal, ended_by)
    assert "peak 1.0 MiB on cuda:0" in Path("out.txt").read_text()
    assert Path("out.pickle").stat().st_size > 0


def test_an_interrupt_that_a_launcher_passes_on_does_not_end_the_report(write):
    what = "killed_by_another_process(signal.SIGINT)"
    script = write(
        program(
            "import pytorch_memlab.cli.ending_signals as signals\nsignals._COPIES = 1e6\n"
            + IN_THE_REPORT.format(what=what)
            + what
            + "\n"
        )
    )

    done = command("-o", "out.txt", script)

    assert done.returncode == -signal.SIGINT
    assert "peak 1.0 MiB on cuda:0" in Path("out.txt").read_text()
    assert done.stderr.count("KeyboardInterrupt") == 1


@pytest.mark.parametrize("first", ["", "killed_by_another_process()", "raise KeyError"])
def test_a_later_signal_ends_a_report_that_hangs(first, write):
    # The report waits for ever; signals are sent until the process has ended.
    what = "open('hangs', 'w').close(); threading.Lock().acquire(); ours.lock.acquire()"
    script = write(
        program(
            IN_THE_REPORT.format(what=what)
            + "import pytorch_memlab.cli.ending_signals as signals\nsignals._COPIES = 0.01\n"
            + "ours.lock = threading.Lock(); ours.lock.acquire()\n"
            + first
            + "\n"
        )
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "pytorch_memlab", "run", "-o", "out.txt", script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not Path("hangs").exists():
        assert process.poll() is None
        time.sleep(0.01)
    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
        time.sleep(0.01)

    assert process.returncode == -signal.SIGTERM


def test_signal_handlers_and_the_wakeup_descriptor_are_given_back(write, capsys):
    from pytorch_memlab.cli.main import main

    def state():
        functions = (signal.signal, signal.getsignal, signal.set_wakeup_fd)
        handlers = [signal.getsignal(number) for number in signal.valid_signals()]
        wakeup = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(wakeup)
        return functions, handlers, wakeup

    before = state()

    assert main(["run", "-o", "out.txt", write("import torch\n")]) == 0
    assert state() == before


def test_every_rank_that_torchrun_started_leaves_its_file(write):
    script = write(
        """\
        import os, signal, torch

        x = torch.ones(256, device="cuda")
        open(f"ready{os.environ['RANK']}", "w").close()
        while not all(os.path.exists(f"ready{rank}") for rank in range(2)):
            pass
        if os.environ["RANK"] == "0":
            os.kill(os.getppid(), signal.SIGTERM)
        signal.pause()
        """
    )
    run = ("-m", "pytorch_memlab", "run", "-o", "out.txt", script)

    python("-m", "torch.distributed.run", "--nproc-per-node", "2", *run)

    tables = [Path(f"out.rank{rank}.txt").read_text() for rank in range(2)]
    assert [table.startswith("peak 1.0 KiB on cuda:0") for table in tables] == [True, True]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_fit_ends_with_its_children_and_tells_what_it_knows(name, write, temporary_folder):
    script = write(
        f"""\
        import os, signal, sys, torch

        torch.ones(256, device="cuda")
        total = torch.cuda.get_device_properties(0).total_memory
        if total > 20 << 30:
            open("child", "w").write(str(os.getpid()))
            os.kill(os.getppid(), signal.{name})
            while True:
                signal.pause()
        """
    )
    done = python("-m", "pytorch_memlab", "fit", "--allow-writes", "--gpu", "t4,a100", script)

    assert done.returncode == -getattr(signal, name), done.stderr
    assert "script.py: run without values\n" in done.stdout
    assert "interrupted: " in done.stderr
    child = int(Path("child").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_fit_ends_with_the_workers_of_data_loaders(write):
    # A worker that works does not look whether its parent lives.
    script = write(
        """\
        import os, signal, torch
        from torch.utils.data import DataLoader

        def work(_items):
            open("worker", "w").write(str(os.getpid()))
            fit = int(open("fit").read())
            os.kill(fit, signal.SIGTERM)
            while True:
                signal.pause()

        torch.ones(256, device="cuda")
        open("fit", "w").write(str(os.getppid()))
        next(iter(DataLoader(range(2), num_workers=1, collate_fn=work)))
        """
    )
    done = python("-m", "pytorch_memlab", "fit", "--allow-writes", "--gpu", "t4", script)

    assert done.returncode == -signal.SIGTERM, done.stderr
    worker = int(Path("worker").read_text())
    patience = time.monotonic() + 30
    while not (has_ended := _has_ended(worker)) and time.monotonic() < patience:
        time.sleep(0.01)
    if not has_ended:
        os.kill(worker, signal.SIGKILL)
    assert has_ended


def _has_ended(process):
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE  # of what has taken it over
    except psutil.NoSuchProcess:
        return True
