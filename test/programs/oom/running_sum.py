# gpu: 128MiB
# cause: running_sum
import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def epoch():
    total = 0.0
    for step in range(12):
        optimizer.zero_grad()
        loss = model(torch.randn(2048, 256, device="cuda")).square().mean()
        if step % 2:
            loss.backward()
            optimizer.step()
        # fixed: total += loss.item()
        total += loss
    return total


epoch()
