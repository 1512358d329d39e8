# gpu: 78MiB
# cause: metric_states
# needs: lightning torchmetrics
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import BinaryPrecisionRecallCurve


class Segmenter(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Conv2d(3, 1, 3, padding=1)
        self.val_curve = BinaryPrecisionRecallCurve()

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.binary_cross_entropy_with_logits(self.net(x)[:, 0], y.float())

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.val_curve.update(self.net(x)[:, 0], y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader(n):
    return DataLoader(TensorDataset(torch.randn(n, 3, 64, 64), torch.randint(0, 2, (n, 64, 64))), batch_size=32)


trainer = L.Trainer(accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False)
trainer.validate(Segmenter(), loader(2048), verbose=False)
