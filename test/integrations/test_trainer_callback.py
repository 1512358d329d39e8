"""``GPUMemoryCallback`` in ``transformers``' Trainer: it logs what the allocator counted."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress

import pytest
import torch
from given_back import everything_given_back
from logged_figures import CATEGORIES, PEAKS

from pytorch_memlab import simulate
from pytorch_memlab.errors import UsageError

transformers = pytest.importorskip("transformers", reason="`make programs` has transformers")
accelerate = pytest.importorskip("accelerate", reason="`make programs` has accelerate")

from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402

from pytorch_memlab.integrations.transformers import GPUMemoryCallback  # noqa: E402

MIB = 2**20

pytestmark = pytest.mark.usefixtures("new_accelerators")


class Layers(torch.nn.Module):
    """Two layers of 1 MiB each, and a loss."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(512, 512, bias=False) for _ in "12"])

    def forward(self, x, labels=None):
        return {"loss": (self.layers(x) - labels).square().mean(), "logits": x}


def rows(count):
    return count * [{"x": torch.ones(512), "labels": torch.zeros(512)}]


def trainer_of(folder, callbacks=(), model=None, batches=4, eval_rows=8, **options):
    """A Trainer of batches of 8 that logs every step, and evaluates with a batch of 8192."""
    arguments = TrainingArguments(
        **{
            "output_dir": str(folder),
            "per_device_train_batch_size": 8,
            "per_device_eval_batch_size": 8192,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            **options,
        }
    )
    model = Layers() if model is None else model
    data = {"train_dataset": rows(8 * batches), "eval_dataset": rows(eval_rows)}
    return Trainer(model, arguments, callbacks=list(callbacks), **data)


class Counters(TrainerCallback):
    """PyTorch's own counters of each step, reset when it begins."""

    def __init__(self):
        self.steps = []

    def on_step_begin(self, *args, **kwargs):
        torch.cuda.reset_peak_memory_stats()

    def on_step_end(self, *args, **kwargs):
        stats = torch.cuda.memory_stats()
        self.steps.append({f"memory/{name}": stats[name] for name in PEAKS})

    def on_evaluate(self, *args, **kwargs):
        # A step that counted the evaluation before it would have at least this peak.
        assert torch.cuda.max_memory_allocated() > self.steps[-1][f"memory/{PEAKS[0]}"]


def counted(folder, **options):
    """The counters of PyTorch in each step, in a simulation without the callback under test."""
    counters = Counters()
    with simulate("24GiB", compute=False):
        trainer_of(folder, [counters], **options).train()
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    return counters.steps


def measured(trainer):
    """The entries of the log with the memory of a step, by the number of the step."""
    return {
        entry["step"]: {name: size for name, size in entry.items() if name.startswith("memory/")}
        for entry in trainer.state.log_history
        if "memory/allocated_bytes.all.peak" in entry
    }


def peaks_in(entry):
    return {f"memory/{name}": entry[f"memory/{name}"] for name in PEAKS}


@pytest.mark.parametrize(
    "options",
    [
        {"max_steps": 4},
        {"num_train_epochs": 2, "gradient_accumulation_steps": 2},
        {
            "num_train_epochs": 2,
            "batches": 2,
            "eval_rows": 8192,
            "eval_strategy": "steps",
            "eval_steps": 1,
        },
    ],
    ids=["steps", "accumulated", "evaluated"],
)
def test_what_is_logged_is_what_the_allocator_counted(options, tmp_path):
    steps = counted(tmp_path, **options)
    assert len(steps) == 4
    with simulate("24GiB", compute=False):
        trainer = trainer_of(tmp_path, **options)
        callback = GPUMemoryCallback(trainer, warmup=2, active=2)
        trainer.add_callback(callback)
        with everything_given_back():
            trainer.train()
    logged = measured(trainer)
    assert {number: peaks_in(entry) for number, entry in logged.items()} == {
        3: steps[2],
        4: steps[3],
    }
    for entry in logged.values():
        held = {name: entry[f"memory/{name}"] for name in CATEGORIES}
        grown = {"memory/growth"} if entry is logged[4] else set()
        names = {f"memory/{name}" for name in (*PEAKS, *CATEGORIES, "headroom")}
        assert set(entry) == names | grown
        assert sum(held.values()) == entry["memory/active_bytes.all.peak"]
        assert held["parameters"] == 2 * MIB
        assert held["optimizer_state"] == 4 * MIB + 2 * 512  # fused Adam counts steps there
        assert held["unknown"] == 0
    assert callback.highest.metrics() in logged.values()


def test_steps_of_a_whole_training_go_to_a_function_of_the_user(tmp_path):
    steps, told = counted(tmp_path, max_steps=6), {}
    with simulate("24GiB", compute=False):
        trainer = trainer_of(tmp_path, max_steps=6)
        callback = GPUMemoryCallback(
            trainer, warmup=1, every=2, log=lambda metrics, step: told.update({step: metrics})
        )
        trainer.add_callback(callback)
        trainer.train()
    assert {step: peaks_in(entry) for step, entry in told.items()} == {
        number: steps[number - 1] for number in (2, 4, 6)
    }
    assert [entry.get("memory/growth") for entry in told.values()] == [None, 0, 0]
    assert measured(trainer) == {}


def test_a_loss_that_is_due_at_the_same_step_is_logged_as_well(tmp_path):
    with simulate("24GiB", compute=False):
        trainer = trainer_of(tmp_path, max_steps=3)
        trainer.add_callback(GPUMemoryCallback(trainer, warmup=1))
        trainer.train()
    kinds = [
        (entry["step"], "loss" if "loss" in entry else "memory")
        for entry in trainer.state.log_history
        if "train_loss" not in entry
    ]
    assert kinds == [(1, "loss"), (2, "memory"), (2, "loss"), (3, "loss")]


def test_trackers_of_report_to_get_the_figures(tmp_path):
    told = []

    class Tracker(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            told.append((state.global_step, dict(logs)))

    with simulate("24GiB", compute=False):
        trainer = trainer_of(tmp_path, [Tracker()], max_steps=3, logging_strategy="no")
        callback = GPUMemoryCallback(trainer)
        trainer.add_callback(callback)
        trainer.train()
    assert told[0] == (3, {**callback.highest.metrics(), "epoch": 0.75})


def test_the_warm_up_of_a_resumed_training_begins_where_it_goes_on(tmp_path):
    with simulate("24GiB"):
        trainer_of(tmp_path, max_steps=2, save_strategy="steps", save_steps=2).train()
        trainer = trainer_of(tmp_path, max_steps=4)
        trainer.add_callback(GPUMemoryCallback(trainer, warmup=1))
        trainer.train(resume_from_checkpoint=True)
    (step,) = measured(trainer)
    assert step == 4


def test_each_training_of_a_trainer_is_measured(tmp_path):
    with simulate("24GiB", compute=False):
        trainer = trainer_of(tmp_path, max_steps=2)
        trainer.add_callback(GPUMemoryCallback(trainer, warmup=1))
        trainer.train()
        first = measured(trainer)
        trainer.train()
        assert list(first) == list(measured(trainer)) == [2]


def test_two_callbacks_measure_the_same(tmp_path):
    steps = counted(tmp_path, max_steps=4)
    with simulate("24GiB", compute=False):
        trainer = trainer_of(tmp_path, max_steps=4)
        callbacks = [
            GPUMemoryCallback(trainer, warmup=1, active=2),
            GPUMemoryCallback(trainer, warmup=2, active=2),
        ]
        for callback in callbacks:
            trainer.add_callback(callback)
        with everything_given_back():
            trainer.train()
    entries = [
        (entry["step"], peaks_in(entry))
        for entry in trainer.state.log_history
        if "memory/unknown" in entry
    ]
    assert entries == [(2, steps[1]), (3, steps[2]), (3, steps[2]), (4, steps[3])]


class Broken(Layers):
    """Layers whose third forward pass raises."""

    calls = 0

    def forward(self, x, labels=None):
        self.calls += 1
        if self.calls == 3:
            raise RuntimeError("a bad batch")
        return super().forward(x, labels)


def test_an_error_within_a_measured_step_ends_the_measurement(tmp_path):
    with simulate("24GiB", compute=False):
        trainer = trainer_of(tmp_path, model=Broken(), max_steps=4)
        trainer.add_callback(GPUMemoryCallback(trainer, warmup=1, active=3))
        with everything_given_back(), pytest.raises(RuntimeError, match="a bad batch"):
            trainer.train()
        trainer.train()
    assert list(measured(trainer)) == [2, 3, 4]


class Greedy(Layers):
    """Layers whose second forward pass asks for more than there is."""

    calls = 0

    def forward(self, x, labels=None):
        self.calls += 1
        wanted = x.expand(2**15, *x.shape).clone() if self.calls == 2 else x
        return super().forward(wanted.reshape(-1, 512)[: len(x)], labels)


@pytest.mark.parametrize("warmup", [0, 5], ids=["measured", "warming up"])
def test_an_out_of_memory_error_is_explained(warmup, tmp_path, capsys):
    with simulate("256MiB", compute=False):
        trainer = trainer_of(tmp_path, model=Greedy(), max_steps=4)
        trainer.add_callback(GPUMemoryCallback(trainer, warmup=warmup, active=3))
        with everything_given_back():
            with suppress(torch.OutOfMemoryError):
                trainer.train()
            gc.collect()
    report = capsys.readouterr().err
    assert report.count("Out of memory on cuda:0") == 1
    assert "in forward\n    wanted = x.expand(2**15, *x.shape).clone()" in report
    assert "  asked for a segment of 512.0 MiB\n" in report


@pytest.mark.filterwarnings("ignore:one rank of")
def test_each_rank_measures_its_own_gpu(tmp_path, monkeypatch):
    for name, value in (("RANK", "1"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29500")
    with simulate("24GiB", 2, compute=False):
        trainer = trainer_of(tmp_path, max_steps=2)
        callback = GPUMemoryCallback(trainer, warmup=1)
        trainer.add_callback(callback)
        trainer.train()
        highest = torch.cuda.max_memory_allocated(1)
        assert torch.cuda.max_memory_allocated(0) == 0
        torch.distributed.destroy_process_group()
    assert not trainer.is_world_process_zero()
    assert callback.highest.device == "cuda:1"
    assert measured(trainer)[2]["memory/allocated_bytes.all.peak"] == highest


def test_a_training_that_is_shorter_than_the_warm_up_says_so(tmp_path):
    with simulate("24GiB", compute=False):
        trainer = trainer_of(tmp_path, max_steps=2)
        trainer.add_callback(GPUMemoryCallback(trainer))
        with pytest.warns(UserWarning, match="ended after 2, and the first 2 are warm-up"):
            trainer.train()


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")
def test_a_training_on_the_cpu_is_not_measured_and_says_so(tmp_path):
    trainer = trainer_of(tmp_path, max_steps=3)
    trainer.add_callback(GPUMemoryCallback(trainer))
    with pytest.warns(UserWarning, match="runs on the CPU, and only the memory of GPUs"):
        trainer.train()
    assert measured(trainer) == {}


def test_a_trainer_is_freed_as_without_the_callback(tmp_path):
    with simulate("24GiB", compute=False):
        trainer = trainer_of(tmp_path, max_steps=3)
        trainer.add_callback(GPUMemoryCallback(trainer, warmup=1))
        trainer.train()
        gone = weakref.ref(trainer)
        gc.collect()
        gc.disable()
        try:
            del trainer
            assert gone() is None
        finally:
            gc.enable()


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        ((object,), {}, "trainer is a transformers.Trainer, not <class 'object'>"),
        ((), {"warmup": -1}, "warmup is a number of steps from 0 on, not -1"),
        ((), {"active": 0}, "active is a number of steps from 1 on, not 0"),
        ((), {"active": 2.5}, "active is a number of steps from 1 on, not 2.5"),
    ],
)
def test_mistyped_arguments(arguments, options, said, tmp_path):
    with simulate("24GiB", compute=False):
        trainer = trainer_of(tmp_path)
        with pytest.raises(UsageError) as error:
            GPUMemoryCallback(*(arguments or (trainer,)), **options)
        assert str(error.value) == said
        assert "train" not in vars(trainer)
