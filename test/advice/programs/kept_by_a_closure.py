# gpu: 128MiB
# cause: kept_graphs
import torch
from torch import nn


def recorder():
    seen = []

    def record(value):
        seen.append(value)
        return len(seen)

    return record


record = recorder()
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    x = torch.randn(1024, 256, device="cuda")
    loss = (model(x) - x[:, :1]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    spread = model(x).std()
    count = record(spread)
print(count)
