# gpu: 128MiB
# cause: running_sum
import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 1024), nn.SiLU(), nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.RMSprop(model.parameters())
average = torch.zeros((), device="cuda")
for _ in range(40):
    x = torch.randn(1024, 256, device="cuda")
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    norm = model(x).norm()
    average = average + norm
print(average / 40)
