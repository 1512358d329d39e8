"""``GPUMemoryMonitor`` in Lightning's Trainer: what it logs is what the allocator counted."""

from __future__ import annotations

import gc
import importlib
from contextlib import suppress

import pytest
import torch
from given_back import everything_given_back
from logged_figures import CATEGORIES, PEAKS

from pytorch_memlab import simulate
from pytorch_memlab.errors import UsageError

# Their import replaces torch.compile: it comes before the first test.
for name in ("lightning.pytorch", "pytorch_lightning"):
    pytest.importorskip(name, reason="`make programs` has lightning")


MIB = 2**20

pytestmark = [
    pytest.mark.filterwarnings("ignore:Starting from v1.9.0, `tensorboardX`"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec"),
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint"),
]


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def library(request):
    """The same library under its two names, whose classes differ."""
    return importlib.import_module(request.param)


def monitor_of(library, **options):
    home = "lightning" if library.__name__ == "lightning.pytorch" else "pytorch_lightning"
    module = importlib.import_module(f"pytorch_memlab.integrations.{home}")
    monitor = module.GPUMemoryMonitor(**options)
    assert isinstance(monitor, library.Callback)
    return monitor


def model_of(library, training_step=None):
    """Two layers of 1 MiB each; a batch has 8 rows, and one of a validation 8192."""

    class Layers(library.LightningModule):
        def __init__(self):
            super().__init__()
            layers = [torch.nn.Linear(512, 512, bias=False) for _ in "12"]
            self.layers = torch.nn.Sequential(*layers)

        def training_step(self, batch, batch_idx):
            if training_step is not None:
                training_step(batch, batch_idx)
            loss = self.layers(batch).square().mean()
            self.log("loss", 0.0)
            return loss

        def validation_step(self, batch, batch_idx):
            self.layers(batch)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), foreach=False)

        def train_dataloader(self):
            return torch.utils.data.DataLoader([torch.ones(512)] * 32, batch_size=8)

        def val_dataloader(self):
            return torch.utils.data.DataLoader([torch.ones(512)] * 8192, batch_size=8192)

    return Layers()


def log_of(library):
    """A logger that keeps what it gets, with the number of the step."""

    class Log(library.loggers.Logger):
        name, version = "log", 0

        def __init__(self):
            self.entries = []

        def log_metrics(self, metrics, step=None):
            self.entries.append((step, metrics))

        def log_hyperparams(self, *args, **kwargs):
            pass

        def measured(self):
            return [(step, each) for step, each in self.entries if "memory/unknown" in each]

    return Log()


def trainer_of(library, callbacks, logger, **options):
    return library.Trainer(
        **{
            "accelerator": "gpu",
            "devices": 1,
            "callbacks": callbacks,
            "logger": logger,
            "log_every_n_steps": 1,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            "limit_val_batches": 0,
            **options,
        }
    )


def counters_of(library):
    """PyTorch's own counters of the batches of each step, reset when a batch begins."""

    class Counters(library.Callback):
        def __init__(self):
            self.steps = []
            self.batches = []

        def on_train_batch_start(self, *args):
            torch.cuda.reset_peak_memory_stats()

        def on_train_batch_end(self, trainer, *args):
            stats = torch.cuda.memory_stats()
            self.batches.append([stats[name] for name in PEAKS])
            if trainer.global_step > len(self.steps):
                self.steps.append([max(each) for each in zip(*self.batches, strict=True)])
                self.batches = []

        def on_validation_end(self, *args):
            # A step that counted the validation before it would have at least this peak.
            measured = max(allocated for allocated, _, _ in [*self.batches, *self.steps])
            assert torch.cuda.max_memory_allocated() > measured

    return Counters()


def peaks_in(entry):
    return [entry[f"memory/{name}"] for name in PEAKS]


@pytest.mark.parametrize(
    "options",
    [
        {"max_steps": 4},
        {"max_epochs": 2, "accumulate_grad_batches": 2},
        {
            "max_epochs": 2,
            "accumulate_grad_batches": 2,
            "limit_val_batches": 1,
            "val_check_interval": 1,
        },
    ],
    ids=["steps", "accumulated", "validated between batches"],
)
def test_what_is_logged_is_what_the_allocator_counted(library, options):
    counters = counters_of(library)
    with simulate("24GiB", compute=False):
        trainer_of(library, [counters], False, **options).fit(model_of(library))
    assert len(counters.steps) == 4
    with simulate("24GiB", compute=False):
        log = log_of(library)
        monitor = monitor_of(library, warmup=2, active=2)
        trainer = trainer_of(library, [monitor], log, **options)
        with everything_given_back():
            trainer.fit(model_of(library))
    logged = log.measured()
    assert [peaks_in(entry) for _, entry in logged] == counters.steps[2:]
    for _, entry in logged:
        held = {name: entry[f"memory/{name}"] for name in CATEGORIES}
        assert {*entry} - {"memory/growth"} == {
            f"memory/{name}" for name in (*PEAKS, *CATEGORIES, "headroom")
        }
        assert sum(held.values()) == entry["memory/active_bytes.all.peak"]
        assert held["parameters"] == 2 * MIB
        assert held["optimizer_state"] == 4 * MIB
        assert held["unknown"] == 0
    assert monitor.highest.metrics() in [entry for _, entry in logged]


def test_the_number_of_a_step_is_that_of_lightnings_own_metrics(library):
    with simulate("24GiB", compute=False):
        log = log_of(library)
        trainer = trainer_of(
            library, [monitor_of(library)], log, max_epochs=2, accumulate_grad_batches=2
        )
        trainer.fit(model_of(library))
    (measured,) = [step for step, entry in log.entries if "memory/unknown" in entry]
    third = [step for step, entry in log.entries if "loss" in entry]
    assert measured == sorted(set(third))[2] == 2


def test_the_warm_up_of_a_resumed_training_begins_where_it_goes_on(library, tmp_path):
    with simulate("24GiB"):
        trainer = trainer_of(library, [], False, max_steps=2)
        trainer.fit(model_of(library))
        trainer.save_checkpoint(tmp_path / "two.ckpt")
        log = log_of(library)
        trainer = trainer_of(library, [monitor_of(library, warmup=1)], log, max_steps=4)
        trainer.fit(model_of(library), ckpt_path=tmp_path / "two.ckpt")
    assert [step for step, _ in log.measured()] == [3]


def test_two_monitors_measure_the_same(library):
    counters = counters_of(library)
    with simulate("24GiB", compute=False):
        trainer_of(library, [counters], False, max_steps=4).fit(model_of(library))
    with simulate("24GiB", compute=False):
        log = log_of(library)
        monitors = [monitor_of(library, warmup=1, active=2), monitor_of(library, active=2)]
        trainer = trainer_of(library, monitors, log, max_steps=4)
        with everything_given_back():
            trainer.fit(model_of(library))
    _, second, third, last = counters.steps
    assert [(step, peaks_in(entry)) for step, entry in log.measured()] == [
        (1, second),
        (2, third),
        (2, third),
        (3, last),
    ]


def test_an_error_within_a_measured_step_ends_the_measurement(library):
    def broken(batch, batch_idx):
        if batch_idx == 2:
            raise RuntimeError("a bad batch")

    with simulate("24GiB", compute=False):
        monitor = monitor_of(library, warmup=1, active=3)
        trainer = trainer_of(library, [monitor], False, max_steps=4)
        with everything_given_back(), pytest.raises(RuntimeError, match="a bad batch"):
            trainer.fit(model_of(library, broken))


def test_what_follows_a_batch_that_the_module_skips_is_not_measured(library):
    """Such a batch has no end, and its epoch ends."""

    def train(callback, logger):
        model = model_of(library)
        model.on_train_batch_start = lambda batch, batch_idx: -1 if batch_idx == 2 else None
        model.on_train_epoch_end = lambda: torch.zeros(16 * MIB, device="cuda")
        with simulate("24GiB", compute=False):
            trainer = trainer_of(library, [callback], logger, max_epochs=2)
            with everything_given_back():
                trainer.fit(model)

    counters, log = counters_of(library), log_of(library)
    train(counters, False)
    train(monitor_of(library, warmup=2, active=5), log)
    measured = [(step, peaks_in(entry)) for step, entry in log.measured()]
    assert measured == [(2, counters.steps[2]), (3, counters.steps[3])]


@pytest.mark.parametrize("warmup", [0, 5], ids=["measured", "warming up"])
def test_an_out_of_memory_error_is_explained(library, warmup, capsys):
    def greedy(batch, batch_idx):
        if batch_idx == 1:
            batch.expand(2**15, *batch.shape).clone()

    with simulate("256MiB", compute=False):
        monitor = monitor_of(library, warmup=warmup, active=3)
        trainer = trainer_of(library, [monitor], False, max_steps=4)
        with everything_given_back():
            with suppress(torch.OutOfMemoryError):
                trainer.fit(model_of(library, greedy))
            gc.collect()
    report = capsys.readouterr().err
    assert report.count("Out of memory on cuda:0") == 1
    assert "in greedy\n    batch.expand(2**15, *batch.shape).clone()\n" in report
    assert "  asked for a segment of 512.0 MiB\n" in report


def test_a_monitor_measures_the_gpu_of_its_trainer(library):
    with simulate("24GiB", 2, compute=False):
        log = log_of(library)
        monitor = monitor_of(library, warmup=1)
        trainer = trainer_of(library, [monitor], log, max_steps=2, devices=[1])
        trainer.fit(model_of(library))
        highest = torch.cuda.max_memory_allocated(1)
    assert monitor.highest.device == "cuda:1"
    assert [entry["memory/allocated_bytes.all.peak"] for _, entry in log.measured()] == [highest]


def test_a_training_that_is_shorter_than_the_warm_up_says_so(library):
    with simulate("24GiB", compute=False):
        trainer = trainer_of(library, [monitor_of(library)], False, max_steps=2)
        with pytest.warns(UserWarning, match="ended after 2, and the first 2 are warm-up"):
            trainer.fit(model_of(library))


def test_a_training_on_the_cpu_is_not_measured_and_says_so(library):
    log = log_of(library)
    monitor = monitor_of(library)
    trainer = trainer_of(library, [monitor], log, max_steps=3, accelerator="cpu")
    with pytest.warns(UserWarning, match="runs on the CPU, and only the memory of GPUs"):
        trainer.fit(model_of(library))
    assert (log.measured(), monitor.highest) == ([], None)


def test_mistyped_arguments(library):
    with pytest.raises(UsageError, match=r"^warmup is a number of steps from 0 on, not '2'$"):
        monitor_of(library, warmup="2")


def test_steps_of_a_whole_training_go_to_a_function_of_the_user(library):
    told = []
    monitor = monitor_of(library, warmup=0, every=3, log=lambda *entry: told.append(entry))
    logger = log_of(library)
    with simulate("24GiB", compute=False):
        trainer_of(library, [monitor], logger, max_epochs=2).fit(model_of(library))
    assert [step for _, step in told] == [0, 3, 6]
    # Lightning keeps the logged loss, 512 bytes, from the second of the first three steps on.
    assert [metrics.get("memory/growth") for metrics, _ in told] == [None, round(512 / 3), 0]
    assert logger.measured() == []
