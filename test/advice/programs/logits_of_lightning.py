# gpu: 398MiB
# cause: logits
# needs: lightning
import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader


class LanguageModel(L.LightningModule):
    def __init__(self, n_tokens=20000, dim=64):
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, dim)
        self.lstm = nn.LSTM(dim, dim, batch_first=True)
        self.to_vocab = nn.Linear(dim, n_tokens)

    def forward(self, ids):
        h, _ = self.lstm(self.embedding(ids))
        return self.to_vocab(h)

    def training_step(self, batch, batch_idx):
        logits = self(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


data = DataLoader(torch.randint(0, 20000, (64, 129)), batch_size=16)
trainer = L.Trainer(max_steps=2, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False)
trainer.fit(LanguageModel(), data)
