"""A training loop that keeps a tensor of every step with its graph: the memory grows."""

import torch

model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))).cuda()
optimizer = torch.optim.Adam(model.parameters())
means = []


def step() -> torch.Tensor:
    """Train once; return the mean output for new data."""
    loss = model(torch.randn(256, 512, device="cuda")).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean: torch.Tensor = model(torch.randn(256, 512, device="cuda")).mean()
    return mean


for number in range(6):
    means.append(step())
    print("step", number, "is done")
