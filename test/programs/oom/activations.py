# gpu: 256MiB
# cause: activations
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(256, 1024)
        self.down = nn.Linear(1024, 256)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(12))

    def forward(self, x):
        for block in self.blocks:
            # fixed: x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            x = block(x)
        return x


model = Net().cuda()
model(torch.randn(4096, 256, device="cuda", requires_grad=True)).sum().backward()
