# gpu: 82MiB
# cause: prefetch
import torch
from torch import nn


def load(i):
    return torch.randn(256, 4096)


model = nn.Linear(4096, 100).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ahead = []
for i in range(40):
    ahead.append(load(i).cuda())
    if len(ahead) < 20:
        continue
    batch = ahead.pop(0)
    loss = model(batch).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
