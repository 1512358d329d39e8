"""The GPU is lent when a signal arrives, and comes back when another one does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from pytorch_memlab.courtesy import Courtesy
from pytorch_memlab.courtesy.courtesy import SignalledCourtesy
from pytorch_memlab.errors import MemlabError, UsageError
from pytorch_memlab.simulation import simulate

LEND, RESTORE = signal.SIGUSR1, signal.SIGUSR2

PROGRAM = """
import logging, signal, sys
import torch
from pytorch_memlab import Courtesy, simulate

def say(*words):
    print(*words, flush=True)

class Tell(logging.Handler):
    def emit(self, record):
        say("log:", record.getMessage(), torch.cuda.memory_allocated())

logging.getLogger("pytorch_memlab").addHandler(Tell())
logging.getLogger("pytorch_memlab").setLevel(logging.INFO)

def train(steps, listen):
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    inp = torch.ones(8, 64, device="cuda")
    losses = []
    while len(losses) < steps:
        loss = model(inp).square().mean()
        loss.backward()
        if listen:
            say("step", len(losses))
            sys.stdin.readline()
        optimizer.step()  # the only safe point: nothing in the loop knows of the signals
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses

with simulate("24GiB"):
    plain = train(4, listen=False)
    with Courtesy.on_signal(signal.SIGUSR1, signal.SIGUSR2):
        say("equal", train(4, listen=True) == plain, torch.cuda.memory_allocated() > 0)
    say(signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGUSR2))
"""


def is_pending(number, pid):
    """True if a signal still waits for a thread of a process (Linux shows it in /proc)."""
    statuses = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    masks = [
        int(line.split()[1], 16)
        for status in statuses
        for line in status.splitlines()
        if line.startswith(("SigPnd:", "ShdPnd:"))
    ]
    return any(mask >> (number - 1) & 1 for mask in masks)


def test_a_training_process_lends_and_goes_on_as_if_nothing_had_happened():
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    ends_at_the_latest = threading.Timer(120, process.kill)
    ends_at_the_latest.start()

    def line():
        return process.stdout.readline().strip()

    def go_on():
        process.stdin.write("\n")
        process.stdin.flush()

    def send(number):
        # A second signal goes to another thread while the first one waits for the main thread,
        # and either may then come first.
        process.send_signal(number)
        wait_until(lambda: not is_pending(number, process.pid))

    with process:
        try:
            assert line() == "step 0"
            go_on()
            assert line() == "step 1"
            send(LEND)
            go_on()  # it is obeyed at the end of optimizer.step()
            assert line() == "log: the GPU is lent, until SIGUSR2 arrives 0"
            send(LEND)  # once more changes nothing
            send(RESTORE)
            assert line().startswith("log: the GPU is back ")
            assert line() == "step 2"
            go_on()
            assert line() == "step 3"
            send(LEND)
            send(RESTORE)  # taken back before a safe point came
            go_on()
            assert line() == "equal True True"
            # The numbers since Python 3.11.
            assert line() in ("0 0", "Handlers.SIG_DFL Handlers.SIG_DFL")
        finally:
            ends_at_the_latest.cancel()
            process.kill()


class Recorder:
    """Stands for ``Courtesy``: notes what is asked of it, and does it."""

    def __init__(self, at_yield=lambda: None, at_restore=lambda: None):
        self.calls = []
        self.at_yield, self.at_restore = at_yield, at_restore
        self.lends = False

    def yield_memory(self, *, release_context):
        self.calls.append("yield")
        self.at_yield()
        self.lends = True

    def restore(self):
        self.calls.append("restore")
        self.at_restore()


def restore_signal():
    signal.raise_signal(RESTORE)


@contextmanager
def restored_at_the_latest():
    """A wait for a signal that was lost ends after a minute, and its test fails."""
    timer = threading.Timer(60, os.kill, (os.getpid(), RESTORE))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)


def test_a_signal_that_another_thread_takes_is_heard_too():
    def lent_then_asked_back():
        # As the system may do while the main thread has another signal pending.
        thread = threading.Thread(
            target=lambda: signal.pthread_kill(threading.get_ident(), RESTORE)
        )
        threading.Timer(0.05, thread.start).start()

    recorder = Recorder(at_yield=lent_then_asked_back)
    with SignalledCourtesy(recorder, LEND, RESTORE) as courtesy:
        signal.raise_signal(LEND)
        courtesy.safe_point()
    assert recorder.calls == ["yield", "restore"]


def test_only_at_a_safe_point():
    recorder = Recorder(at_yield=restore_signal)
    with SignalledCourtesy(recorder, LEND, RESTORE) as courtesy:
        courtesy.safe_point()
        signal.raise_signal(LEND)
        assert recorder.calls == []
        courtesy.safe_point()
        assert recorder.calls == ["yield", "restore"]
        courtesy.safe_point()
        assert recorder.calls == ["yield", "restore"]


def test_a_request_that_is_taken_back():
    recorder = Recorder()
    with SignalledCourtesy(recorder, LEND, RESTORE) as courtesy:
        signal.raise_signal(LEND)
        signal.raise_signal(RESTORE)
        courtesy.safe_point()

    assert recorder.calls == []


def test_any_optimizers_step_ends_in_a_safe_point():
    recorder = Recorder(at_yield=restore_signal)
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    with SignalledCourtesy(recorder, LEND, RESTORE):
        signal.raise_signal(LEND)
        optimizer.step()
        assert recorder.calls == ["yield", "restore"]
    signal.signal(LEND, signal.SIG_IGN)
    signal.raise_signal(LEND)
    signal.signal(LEND, signal.SIG_DFL)
    optimizer.step()

    assert recorder.calls == ["yield", "restore"]
    assert weight.tolist() == [0, 0]


def test_handlers_are_put_back():
    def own(number, frame):
        pass

    before = signal.signal(LEND, own), signal.signal(RESTORE, signal.SIG_IGN)
    try:
        courtesy = Courtesy.on_signal(LEND, RESTORE)
        assert signal.getsignal(LEND) not in (own, signal.SIG_DFL)
        with pytest.raises(KeyError), courtesy:
            raise KeyError("inside")
        courtesy.stop()
        assert signal.getsignal(LEND) is own
        assert signal.getsignal(RESTORE) is signal.SIG_IGN
    finally:
        signal.signal(LEND, before[0])
        signal.signal(RESTORE, before[1])


def test_a_host_without_room_does_not_end_the_program():
    def refuse():
        raise MemlabError("no room for 2.00 GiB in host memory")

    recorder = Recorder(at_yield=refuse)
    with SignalledCourtesy(recorder, LEND, RESTORE) as courtesy:
        signal.raise_signal(LEND)
        with pytest.warns(
            UserWarning, match=r"^the GPU was asked for, but is not lent: no room for"
        ):
            courtesy.safe_point()
        courtesy.safe_point()

    assert recorder.calls == ["yield"]


def test_a_gpu_without_room_is_waited_for():
    failures = [MemlabError("no room on cuda:0"), MemlabError("no room on cuda:0")]

    def fail():
        if failures:
            restore_signal()  # at once: it must not be lost
            raise failures.pop()

    recorder = Recorder(at_yield=restore_signal, at_restore=fail)
    with SignalledCourtesy(recorder, LEND, RESTORE) as courtesy:
        signal.raise_signal(LEND)
        with pytest.warns(UserWarning, match=r"^no room on cuda:0: send SIGUSR2 again$"):
            courtesy.safe_point()

    assert recorder.calls == ["yield", "restore", "restore", "restore"]


def test_ctrl_c_while_the_gpu_is_lent_brings_it_back_first():
    recorder = Recorder()
    with SignalledCourtesy(recorder, LEND, RESTORE) as courtesy, restored_at_the_latest():
        signal.raise_signal(LEND)

        def interrupt():
            wait_until(lambda: recorder.lends)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            courtesy.safe_point()
        thread.join()

    assert recorder.calls == ["yield", "restore"]


def swallowed_interrupt():
    """Ctrl-C while the callback of a weak reference runs: Python prints it and goes on."""

    class Tensor:
        pass

    tensor = Tensor()
    reference = weakref.ref(tensor, lambda _: signal.raise_signal(signal.SIGINT))
    del tensor
    assert reference() is None


@pytest.fixture
def swallowed(monkeypatch):
    """The exceptions that Python printed because no code could catch them."""
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: seen.append(error.exc_type))
    return seen


def test_ctrl_c_is_not_lost_where_python_swallows_it_while_the_gpu_is_lent(swallowed):
    recorder = Recorder(at_yield=swallowed_interrupt)
    before = signal.getsignal(signal.SIGINT)
    with SignalledCourtesy(recorder, LEND, RESTORE) as courtesy, restored_at_the_latest():
        signal.raise_signal(LEND)
        with pytest.raises(KeyboardInterrupt):
            courtesy.safe_point()

    assert swallowed == [KeyboardInterrupt]
    assert recorder.calls == ["yield", "restore"]
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_is_not_lost_either_while_a_gpu_without_room_is_waited_for(swallowed):
    def fail():
        swallowed_interrupt()
        raise MemlabError("no room on cuda:0")

    recorder = Recorder(at_yield=restore_signal, at_restore=fail)
    with SignalledCourtesy(recorder, LEND, RESTORE) as courtesy, restored_at_the_latest():
        signal.raise_signal(LEND)
        with pytest.warns(UserWarning, match="no room"), pytest.raises(KeyboardInterrupt):
            courtesy.safe_point()

    assert swallowed == [KeyboardInterrupt]
    assert recorder.calls == ["yield", "restore"]


def test_a_handler_of_ctrl_c_that_only_notes_it_stays_in_force(monkeypatch):
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append(RESTORE))
    try:
        recorder = Recorder(at_yield=lambda: (signal.raise_signal(signal.SIGINT), restore_signal()))
        with SignalledCourtesy(recorder, LEND, RESTORE) as courtesy:
            signal.raise_signal(LEND)
            courtesy.safe_point()
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)

    assert heard == [RESTORE] * 2
    assert recorder.calls == ["yield", "restore"]


def test_a_loop_in_another_thread():
    lent = threading.Event()
    recorder = Recorder(at_yield=lent.set)
    with SignalledCourtesy(recorder, LEND, RESTORE) as courtesy:
        signal.raise_signal(LEND)
        thread = threading.Thread(target=courtesy.safe_point)
        thread.start()
        assert lent.wait(60)
        courtesy.safe_point()  # of a second thread: goes on at once
        assert recorder.calls == ["yield"]
        restore_signal()
        thread.join(60)

    assert recorder.calls == ["yield", "restore"]


@pytest.mark.parametrize(
    ("signals", "message"),
    [
        ((LEND, LEND), r"^SIGUSR1 cannot both lend and restore: give two signals$"),
        ((signal.SIGKILL, RESTORE), r"^signal 9 cannot be caught; SIGUSR1 and SIGUSR2 can$"),
        ((LEND, 1000), r"^signal 1000 cannot be caught"),
        (("SIGUSR1", RESTORE), r"^a signal is a number such as signal\.SIGUSR1, not 'SIGUSR1'$"),
    ],
)
def test_signals_that_cannot_be(signals, message):
    before = signal.getsignal(LEND), signal.getsignal(RESTORE)
    with pytest.raises(UsageError, match=message):
        Courtesy.on_signal(*signals)

    assert (signal.getsignal(LEND), signal.getsignal(RESTORE)) == before


def test_the_main_thread_alone_can_listen():
    errors = []

    def listen():
        try:
            Courtesy.on_signal(LEND, RESTORE)
        except UsageError as error:
            errors.append(str(error))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()

    assert errors == ["Courtesy.on_signal() belongs into the main thread, as all signals do"]


def test_real_memory_goes_and_comes():
    with simulate("24GiB"), Courtesy.on_signal(LEND, RESTORE) as courtesy:
        tensor = torch.arange(5.0, device="cuda")
        signal.raise_signal(LEND)
        seen = []

        def look():
            wait_until(lambda: not torch.cuda.memory_allocated())
            seen.append(tensor.device.type)
            os.kill(os.getpid(), RESTORE)

        thread = threading.Thread(target=look)
        thread.start()
        courtesy.safe_point()
        thread.join()

        assert seen == ["cpu"]
        assert str(tensor.device) == "cuda:0"
        assert tensor.tolist() == [0, 1, 2, 3, 4]


def test_two_listeners_would_forget_whose_handler_was_first():
    handler = signal.getsignal(signal.SIGUSR1)
    with Courtesy.on_signal(signal.SIGUSR1, signal.SIGUSR2):
        with pytest.raises(UsageError, match=r"listens to SIGUSR2 already: stop\(\) that first$"):
            Courtesy.on_signal(signal.SIGALRM, signal.SIGUSR2)
        with Courtesy.on_signal(signal.SIGALRM, signal.SIGVTALRM):
            pass

    assert signal.getsignal(signal.SIGUSR1) is handler
