# gpu: 124MiB
# cause: model_twice
import copy

import torch
from torch import nn

model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
averages = [copy.deepcopy(model) for _ in range(3)]
decays = [0.9, 0.99, 0.999]
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for i in range(4):
    x = torch.randn(512, 512, device="cuda")
    loss = (model(x) - x).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for average, decay in zip(averages, decays):
            for a, p in zip(average.parameters(), model.parameters()):
                a.lerp_(p, 1 - decay)
