# gpu: 256MiB
# cause: kept_graphs
import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.Adam(model.parameters())
outputs, kept = [], []
for _ in range(40):
    x = torch.randn(1024, 256, device="cuda")
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    kept.append(x.sign())
    outputs.append((model(x) - x).abs().mean())
print(len(outputs), len(kept))
