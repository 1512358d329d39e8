"""Epochs of Lightning: the second validation may need more memory than the first one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.fit_command import fitted

from pytorch_memlab import simulate

pytest.importorskip("lightning.pytorch", reason="`make programs` has lightning")

pytestmark = [
    pytest.mark.programs,
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]

MIB = 2**20

PROGRAM = """\
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10))

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch, index):
        x, y = batch
        self.log("loss", nn.functional.cross_entropy(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


data = TensorDataset(torch.randn(4096, 256), torch.randint(0, 10, (4096,)))
trainer = L.Trainer(accelerator="gpu", devices=1, max_epochs=EPOCHS, logger=False,
                    enable_checkpointing=False, enable_progress_bar=False, num_sanity_val_steps=0)
trainer.fit(Net(), DataLoader(data, batch_size=256), DataLoader(data, batch_size=4096))
"""


def whole_run(epochs: int, gpu: str) -> int:
    """The most memory that the allocator takes; 0 for a run that ends without memory."""
    with simulate(gpu, compute=False, context=0):
        text = PROGRAM.replace("EPOCHS", str(epochs))
        try:
            exec(compile(text, "net.py", "exec"), {"__name__": "__main__"})
        except torch.OutOfMemoryError:
            return 0
        return torch.cuda.max_memory_reserved()


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_a_verdict_is_that_of_the_whole_run(epochs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(PROGRAM.replace("EPOCHS", str(epochs)))
    peak = whole_run(epochs, "64GiB")
    # One epoch, or its validation alone, needs less than two.
    assert (peak > whole_run(1, "64GiB")) == (epochs > 1)
    for size in (peak, peak - 4 * MIB):
        holds = bool(whole_run(epochs, str(size)))
        assert holds == (size == peak)
        code, out, _ = fitted(capsys, "--gpu", str(size), "net.py")
        assert (code, f"{peak / MIB:.1f} MiB" in out) == (0 if holds else 3, True)
