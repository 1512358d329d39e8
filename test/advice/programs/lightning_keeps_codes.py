# gpu: 150MiB
# cause: kept_graphs
# needs: lightning
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader


class LitAutoEncoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 8))
        self.decoder = nn.Sequential(nn.Linear(8, 4096), nn.ReLU(), nn.Linear(4096, 512))
        self.codes = []

    def training_step(self, batch, batch_idx):
        x_hat = self.decoder(self.encoder(batch))
        return nn.functional.mse_loss(x_hat, batch)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        # codes after the update, for a plot at the end of the epoch
        self.codes.append(self.encoder(batch[:256]))

    def on_train_epoch_end(self):
        self.log("spread", torch.cat(self.codes).std())
        self.codes.clear()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


loader = DataLoader(torch.randn(24 * 512, 512), batch_size=512)
trainer = L.Trainer(max_epochs=1, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False)
trainer.fit(LitAutoEncoder(), loader)
