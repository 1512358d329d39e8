# gpu: 128MiB
# cause: kept_graphs
from collections import defaultdict

import torch
from torch import nn


def fit(model, steps):
    logs = defaultdict(list)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        x = torch.randn(1024, 256, device="cuda")
        reconstruction = model(x)
        loss = nn.functional.mse_loss(reconstruction, x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        logs["spread"].append(model(x).std())
    return logs


model = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 256)).to("cuda")
print(fit(model, 50)["spread"][-1])
