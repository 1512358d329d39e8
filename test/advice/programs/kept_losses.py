# gpu: 160MiB
# cause: kept_graphs
"""Keeps the loss of each step to plot it."""
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).cuda()
sgd = torch.optim.SGD(net.parameters(), lr=1e-3)
history = []
for step in range(60):
    x = torch.randn(1024, 256, device="cuda")
    loss = (net(x) - x).pow(2).mean()
    sgd.zero_grad()
    loss.backward(retain_graph=False)
    sgd.step()
    penalty = net(x).abs().mean()
    history.append(penalty)
print(len(history))
