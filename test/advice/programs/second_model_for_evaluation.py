# gpu: 160MiB
# cause: model_twice
import copy

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(12)]).cuda()
best = copy.deepcopy(model)
x = torch.randn(512, 1024, device="cuda")
loss = model(x).square().mean()
loss.backward()
print(loss.item(), len(list(best.parameters())))
