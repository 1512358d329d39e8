# gpu: 110MiB
# cause: none
# needs: lightning
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 256))

    def training_step(self, batch, batch_idx):
        loss = nn.functional.mse_loss(self.layers(batch), batch)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = L.Trainer(max_steps=4, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Model(), DataLoader(torch.randn(8192, 256), batch_size=2048))
