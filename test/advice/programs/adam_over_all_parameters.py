# gpu: 204MiB
# cause: optimizer_temporaries
import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(10)]).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for step in range(4):
    x = torch.randn(32, 1024, device="cuda")
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
