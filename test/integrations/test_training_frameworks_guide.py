"""The code and the commands of the guide to training frameworks do what the guide says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch

from pytorch_memlab import simulate
from pytorch_memlab.cli.main import main
from pytorch_memlab.history.model import Category

transformers = pytest.importorskip("transformers", reason="`make programs` has transformers")
accelerate = pytest.importorskip("accelerate", reason="`make programs` has accelerate")
for name in ("lightning.pytorch", "pytorch_lightning"):
    pytest.importorskip(name, reason="`make programs` has lightning")

import lightning.pytorch  # noqa: E402
from transformers import TrainingArguments  # noqa: E402

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "training-frameworks.md").read_text(encoding="utf-8")
TRAINER, LIGHTNING, ACCELERATE, HIGHEST, OWN_LOOP = re.findall(
    r"^```python\n(.*?)^```$", GUIDE, re.M | re.S
)
COMMANDS = re.findall(r"^(pytorch-memlab .*)$", GUIDE, re.MULTILINE)


pytestmark = [
    pytest.mark.usefixtures("new_accelerators"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated"),
]


def named_in_the_guide():
    """The names of figures in the table."""
    rows = re.findall(r"^\| (`memory/.*?) \|", GUIDE, re.MULTILINE)
    return set(re.findall(r"`(memory/[^`]*)`", " ".join(rows)))


def test_the_table_has_every_figure():
    categories = {f"memory/{one.value.replace(' ', '_')}" for one in Category}
    peaks = {f"memory/{kind}_bytes.all.peak" for kind in ("allocated", "reserved", "active")}
    assert named_in_the_guide() == categories | peaks | {"memory/headroom"}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        return {"loss": self.layer(x).square().mean()}


def test_trainer(tmp_path):
    texts = 24 * [{"x": torch.ones(8)}]
    options = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True}
    with simulate("24GiB", compute=False):
        arguments = TrainingArguments(str(tmp_path), num_train_epochs=1, **options)
        names = {"model": Model(), "arguments": arguments, "texts": texts}
        exec(TRAINER, names)
    (entry,) = [one for one in names["trainer"].state.log_history if "memory/unknown" in one]
    assert set(entry) == named_in_the_guide() | {"epoch", "step"}


def test_lightning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # Lightning writes a checkpoint

    class Layer(lightning.pytorch.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def training_step(self, batch):
            return self.layer(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

        def train_dataloader(self):
            return torch.utils.data.DataLoader([torch.ones(8)] * 3)

    class Log(lightning.pytorch.loggers.Logger):
        name, version = "log", 0
        entries = ()

        def log_metrics(self, metrics, step=None):
            self.entries = (*self.entries, metrics)

        def log_hyperparams(self, *args, **kwargs):
            pass

    log = Log()
    with simulate("24GiB", compute=False):
        exec(LIGHTNING, {"model": Layer(), "logger": log})
    (entry,) = [one for one in log.entries if "memory/unknown" in one]
    assert set(entry) == named_in_the_guide()


def test_accelerate(capsys, monkeypatch):
    logged = []
    with simulate("24GiB", compute=False):
        accelerator = accelerate.Accelerator(gradient_accumulation_steps=2)
        monkeypatch.setattr(accelerator, "log", lambda values, step: logged.append(values))
        layer = torch.nn.Linear(8, 8)
        optimizer = torch.optim.Adam(layer.parameters())
        data = torch.utils.data.TensorDataset(torch.ones(6, 8), torch.ones(6, dtype=torch.long))
        loader = torch.utils.data.DataLoader(data)
        names = dict(
            zip(
                ("model", "optimizer", "loader"),
                accelerator.prepare(layer, optimizer, loader),
                strict=True,
            ),
            accelerator=accelerator,
            cross_entropy=torch.nn.functional.cross_entropy,
        )
        exec(ACCELERATE, names)
    exec(HIGHEST, names)
    (entry,) = logged
    assert set(entry) == named_in_the_guide()
    printed, table = capsys.readouterr().out.split("\n", 1)
    assert int(printed) == entry["memory/allocated_bytes.all.peak"]
    assert "Linear" in table


def test_a_loop_of_ones_own():
    logged, kept = {}, []

    class Logger:
        def log(self, scalars, step):
            logged[step] = scalars

    def train_step(batch):
        kept.append(torch.zeros(batch, device="cuda"))

    with simulate("24GiB"):
        exec(OWN_LOOP, {"loader": [1024] * 20, "train_step": train_step, "logger": Logger()})
    assert {step: one["memory/growth"] for step, one in logged.items()} == {9: 40960, 19: 40960}
    assert logged[19]["memory/allocated_bytes.all.peak"] == 20 * 4096


def test_every_command_works(tmp_path, monkeypatch, capsys):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    outputs = []
    for command in COMMANDS:
        assert main(shlex.split(command)[1:]) == 0
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        outputs.append(capsys.readouterr().out)
    assert len(outputs) == 5
    assert "Trainer.training_step" in outputs[2]
    assert "GPT2LMHeadModel.transformer.h.0" in outputs[4]
