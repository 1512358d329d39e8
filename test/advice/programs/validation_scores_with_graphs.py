# gpu: 400MiB
# cause: no_grad
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Blobs(Dataset):
    def __init__(self, n, size):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.rand(3, self.size, self.size, generator=g), torch.randint(
            0, 2, (1, self.size, self.size), generator=g
        ).float()


class SegNet(nn.Module):
    def __init__(self, ch=16):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(3, ch, 3, padding=1),
            nn.BatchNorm2d(ch),
            nn.ReLU(),
            nn.Conv2d(ch, ch * 2, 3, stride=2, padding=1),
            nn.BatchNorm2d(ch * 2),
            nn.ReLU(),
        )
        self.dec = nn.Sequential(
            nn.ConvTranspose2d(ch * 2, ch, 2, stride=2), nn.ReLU(), nn.Conv2d(ch, 1, 1)
        )

    def forward(self, x):
        return self.dec(self.enc(x))


def soft_iou(logits, target):
    p = logits.sigmoid()
    inter = (p * target).sum((1, 2, 3))
    union = (p + target - p * target).sum((1, 2, 3))
    return inter / union


class Trainer:
    def __init__(self, model, train, val, lr=1e-3):
        self.device = torch.device("cuda")
        self.model = model.to(self.device)
        self.train_loader = DataLoader(train, batch_size=8, shuffle=True)
        self.val_loader = DataLoader(val, batch_size=8)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.history = defaultdict(list)

    def step(self, x, y):
        logits = self.model(x)
        loss = F.binary_cross_entropy_with_logits(logits, y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.history["loss"].append(loss.item())

    def validate(self):
        self.model.eval()
        for x, y in self.val_loader:
            x, y = x.to(self.device), y.to(self.device)
            logits = self.model(x)
            self.history["val_iou"].append(soft_iou(logits, y).mean())
        self.model.train()

    def run(self, epochs):
        for epoch in range(epochs):
            for x, y in self.train_loader:
                self.step(x.to(self.device), y.to(self.device))
            self.validate()
            print(
                epoch,
                sum(self.history["loss"]) / len(self.history["loss"]),
                torch.stack(self.history["val_iou"]).mean(),
            )


if __name__ == "__main__":
    torch.manual_seed(0)
    Trainer(SegNet(), Blobs(64, 96), Blobs(80, 96)).run(3)
