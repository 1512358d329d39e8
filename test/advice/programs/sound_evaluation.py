# gpu: 124MiB
# cause: none
import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)]).cuda().eval()


@torch.no_grad()
def evaluate():
    total = 0.0
    for _ in range(4):
        total += model(torch.randn(16384, 512, device="cuda")).square().mean().item()
    return total


print(evaluate())
