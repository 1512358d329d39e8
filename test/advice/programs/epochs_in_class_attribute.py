# gpu: 128MiB
# cause: kept_graphs
import torch
from torch import nn


class Stats:
    by_epoch: dict = {}
    steps: list = []

    @classmethod
    def add(cls, epoch, value):
        cls.by_epoch.setdefault(epoch, []).append(value)
        cls.steps.append(epoch)


def fit(model, optimizer):
    for epoch in range(4):
        for _ in range(10):
            x = torch.randn(512, 256, device="cuda")
            loss = nn.functional.mse_loss(model(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            Stats.add(epoch, nn.functional.l1_loss(model(x), x))


model = nn.Sequential(nn.Linear(256, 2048), nn.GELU(), nn.Linear(2048, 256)).cuda()
fit(model, torch.optim.Adam(model.parameters()))
print({epoch: len(values) for epoch, values in Stats.by_epoch.items()}, len(Stats.steps))
