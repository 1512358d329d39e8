# gpu: 128MiB
# cause: kept_graphs
import torch
from torch import nn
from tracking import Tracker

tracker = Tracker(every=1)
model = nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    x = torch.randn(1024, 256, device="cuda")
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    error = (model(x) - x).abs().max()
    tracker.log(step, error=error)
print(len(tracker.values["error"]))
