# gpu: 244MiB
# cause: optimizer_temporaries
import torch
from torch import nn

model = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(12)).cuda()
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
for step in range(3):
    x = torch.randn(8, 1024, device="cuda")
    for layer in model:
        x = torch.relu(layer(x))
    optimizer.zero_grad()
    x.mean().backward()
    optimizer.step()
