# gpu: 194MiB
# cause: none
import torch
from torch import nn

net = nn.Sequential(nn.Linear(128, 2048), nn.GELU(), nn.Linear(2048, 128)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
losses = []
for step in range(8):
    x = torch.randn(4096, 128, device="cuda")
    loss = (net(x) - x).pow(2).mean() / 4
    loss.backward()
    losses.append(loss.item())
    if step % 4 == 3:
        opt.step()
        opt.zero_grad()
