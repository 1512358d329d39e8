# gpu: 128MiB
# cause: kept_graphs
import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train():
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = model(torch.randn(2048, 256, device="cuda")).square().mean()
        # fixed: loss.backward(); losses.append(loss.item())
        losses.append(loss)
        optimizer.step()
    # fixed: pass
    torch.stack(losses).mean().backward()


train()
