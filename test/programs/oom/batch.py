# gpu: 256MiB
# cause: batch
import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
# fixed: images = torch.randn(2048, 256, device="cuda")
images = torch.randn(8192, 256, device="cuda")
model(images).sum().backward()
optimizer.step()
