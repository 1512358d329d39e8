# gpu: 160MiB
# cause: backward_of_sum
import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step(losses):
    optimizer.zero_grad()
    total = 0.0
    for _ in range(losses):
        loss = model(torch.randn(2048, 256, device="cuda")).square().mean() / losses
        # fixed: loss.backward(); total = total + loss.detach()
        total = total + loss
    # fixed: pass
    total.backward()
    optimizer.step()
    return total


print(step(12))
