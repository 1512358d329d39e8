# gpu: 124MiB
# cause: fragmentation
import torch
import torch.nn.functional as F
from torch import nn

# progressive resizing
conv = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 8, 3, padding=1)).cuda()
opt = torch.optim.SGD(conv.parameters(), lr=0.1)
for size in range(96, 400, 16):
    for _ in range(2):
        image = torch.rand(2, 3, size, size, device="cuda")
        loss = conv(image).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
