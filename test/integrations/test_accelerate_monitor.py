"""``GPUMemoryMonitor`` in a loop with ``accelerate``: it logs what the allocator counted."""

from __future__ import annotations

import gc
from contextlib import suppress

import pytest
import torch
from given_back import everything_given_back
from logged_figures import CATEGORIES, PEAKS

from pytorch_memlab import simulate
from pytorch_memlab.errors import UsageError

accelerate = pytest.importorskip("accelerate", reason="`make programs` has accelerate")

from accelerate.tracking import GeneralTracker, on_main_process  # noqa: E402

from pytorch_memlab.integrations.accelerate import GPUMemoryMonitor  # noqa: E402

MIB = 2**20

pytestmark = pytest.mark.usefixtures("new_accelerators")


class Log(GeneralTracker):
    """A tracker that keeps what it gets."""

    name = "log"
    requires_logging_directory = False
    tracker = None

    def __init__(self):
        super().__init__()
        self.entries = []

    @on_main_process
    def store_init_configuration(self, values):
        pass

    @on_main_process
    def log(self, values, step=None, **kwargs):
        self.entries.append((step, values))


class Loop:
    """A training of two layers of 1 MiB each, with an evaluation after each batch.

    Args:
        accumulate: batches whose gradients make up one step.
        fails: called within the batch that has a number, with its rows.
    """

    def __init__(self, accumulate=1, fails=None, **options):
        self.accelerator = accelerate.Accelerator(gradient_accumulation_steps=accumulate, **options)
        self.log = Log()
        self.accelerator.trackers = [self.log]
        model = torch.nn.Sequential(*[torch.nn.Linear(512, 512, bias=False) for _ in "12"])
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
        loader = torch.utils.data.DataLoader([torch.ones(512)] * 64, batch_size=8)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        self.fails = fails or {}

    def run(self, batch):
        """Train eight batches, and take 64 MiB after each, as an evaluation might.

        Args:
            batch: makes what is around each batch, from the number of the step.
        """
        step = 0
        for number, rows in enumerate(self.loader):
            with self.accelerator.accumulate(self.model), batch(step):
                self.fails.get(number, lambda rows: None)(rows)
                loss = self.model(rows).square().mean()
                self.accelerator.backward(loss)
                self.optimizer.step()
                self.optimizer.zero_grad()
            step += self.accelerator.sync_gradients
            torch.zeros(16 * MIB, device=self.accelerator.device)


class Counted:
    """Around a batch: PyTorch's own counters, reset when it begins."""

    def __init__(self, accelerator):
        self.accelerator = accelerator
        self.steps = []
        self.batches = []

    def __call__(self, step):
        return self

    def __enter__(self):
        torch.cuda.reset_peak_memory_stats()

    def __exit__(self, *exc):
        stats = torch.cuda.memory_stats()  # of the current GPU, which is that of the rank
        self.batches.append([stats[name] for name in PEAKS])
        if self.accelerator.sync_gradients:
            self.steps.append([max(each) for each in zip(*self.batches, strict=True)])
            self.batches = []


def counted(accumulate=1):
    """The counters of PyTorch in each step, without the monitor."""
    with simulate("24GiB", 2, compute=False):
        loop = Loop(accumulate)
        counters = Counted(loop.accelerator)
        loop.run(counters)
        # A step that counted what is taken between batches would have more than that.
        assert max(allocated for allocated, _, _ in counters.steps) < 64 * MIB
        loop.accelerator.end_training()
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    return counters.steps


def peaks_in(entry):
    return [entry[f"memory/{name}"] for name in PEAKS]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_what_is_logged_is_what_the_allocator_counted(accumulate):
    steps = counted(accumulate)
    assert len(steps) == 8 // accumulate
    with simulate("24GiB", compute=False):
        loop = Loop(accumulate)
        monitor = GPUMemoryMonitor(loop.accelerator, active=2)
        with everything_given_back():
            loop.run(monitor.batch)
    assert [(step, peaks_in(entry)) for step, entry in loop.log.entries] == [
        (2, steps[2]),
        (3, steps[3]),
    ]
    for _, entry in loop.log.entries:
        held = {name: entry[f"memory/{name}"] for name in CATEGORIES}
        assert {*entry} - {"memory/growth"} == {
            f"memory/{name}" for name in (*PEAKS, *CATEGORIES, "headroom")
        }
        assert sum(held.values()) == entry["memory/active_bytes.all.peak"]
        assert held["parameters"] == 2 * MIB
        assert held["optimizer_state"] == 4 * MIB
        assert held["unknown"] == 0
    assert monitor.highest.metrics() in [entry for _, entry in loop.log.entries]


def test_two_monitors_measure_the_same():
    steps = counted()
    with simulate("24GiB", compute=False):
        loop = Loop()
        outer = GPUMemoryMonitor(loop.accelerator, warmup=1, active=2)
        inner = GPUMemoryMonitor(loop.accelerator, warmup=2, active=2)

        class Both:
            def __init__(self, step):
                self.around = [outer.batch(step), inner.batch(step)]

            def __enter__(self):
                for each in self.around:
                    each.__enter__()

            def __exit__(self, *exc):
                # In the order of callbacks, not of blocks.
                for each in self.around:
                    each.__exit__(*exc)

        with everything_given_back():
            loop.run(Both)
    assert [(step, peaks_in(entry)) for step, entry in loop.log.entries] == [
        (1, steps[1]),
        (2, steps[2]),
        (2, steps[2]),
        (3, steps[3]),
    ]


def test_an_error_within_a_measured_step_ends_the_measurement():
    def fail(rows):
        raise RuntimeError("a bad batch")

    with simulate("24GiB", compute=False):
        loop = Loop(accumulate=2, fails={3: fail})
        monitor = GPUMemoryMonitor(loop.accelerator, warmup=1)
        with everything_given_back(), pytest.raises(RuntimeError, match="a bad batch"):
            loop.run(monitor.batch)
    assert monitor.highest is None


@pytest.mark.parametrize("warmup", [0, 5], ids=["measured", "warming up"])
def test_an_out_of_memory_error_is_explained(warmup, capsys):
    def greedy(rows):
        rows.expand(2**15, *rows.shape).clone()

    with simulate("256MiB", compute=False):
        loop = Loop(fails={1: greedy})
        monitor = GPUMemoryMonitor(loop.accelerator, warmup=warmup, active=3)
        with everything_given_back():
            with suppress(torch.OutOfMemoryError):
                loop.run(monitor.batch)
            gc.collect()
    report = capsys.readouterr().err
    assert report.count("Out of memory on cuda:0") == 1
    assert "in greedy\n    rows.expand(2**15, *rows.shape).clone()\n" in report
    assert "  asked for a segment of 512.0 MiB\n" in report


@pytest.mark.filterwarnings("ignore:one rank of")
def test_each_rank_measures_its_own_gpu_and_the_main_process_logs(monkeypatch):
    for name, value in (("RANK", "1"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29500")
    steps = counted()
    with simulate("24GiB", 2, compute=False):
        loop = Loop()
        monitor = GPUMemoryMonitor(loop.accelerator, warmup=1)
        loop.run(monitor.batch)
        loop.accelerator.end_training()
    assert (monitor.highest.device, loop.log.entries) == ("cuda:1", [])
    assert list(monitor.highest.peaks.values()) == steps[1]


def test_a_training_on_the_cpu_is_not_measured_and_says_so():
    loop = Loop(cpu=True)
    with pytest.warns(UserWarning, match="runs on the CPU, and only the memory of GPUs") as said:
        monitor = GPUMemoryMonitor(loop.accelerator)
    assert said[0].filename == __file__
    loop.run(monitor.batch)
    assert (loop.log.entries, monitor.highest) == ([], None)


def test_mistyped_arguments():
    with pytest.raises(UsageError, match=r"^accelerator is an accelerate.Accelerator, not 'cuda'$"):
        GPUMemoryMonitor("cuda")


def test_steps_of_a_whole_training_go_to_a_function_of_the_user():
    told = []
    with simulate("24GiB", 2, compute=False):
        loop = Loop()
        monitor = GPUMemoryMonitor(
            loop.accelerator, warmup=0, every=3, log=lambda *entry: told.append(entry)
        )
        loop.run(lambda step: monitor.batch(None if step == 3 else 10 * step))
    # Without a number of the user it is that of the step.
    assert [step for _, step in told] == [0, 4, 60]
    assert [metrics.get("memory/growth") for metrics, _ in told] == [None, 0, 0]
    assert loop.log.entries == []
