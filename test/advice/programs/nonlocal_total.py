# gpu: 128MiB
# cause: running_sum
import torch
from torch import nn


def train(model, optimizer):
    total = torch.zeros((), device="cuda")
    count = 0

    def add(value):
        nonlocal total, count
        total = value + total
        count += 1

    for _ in range(40):
        x = torch.randn(1024, 256, device="cuda")
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        add(nn.functional.l1_loss(model(x), x))
    return float(total) / count


model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
print(train(model, torch.optim.SGD(model.parameters(), lr=0.1)))
