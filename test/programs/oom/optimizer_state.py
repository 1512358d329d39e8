# gpu: 160MiB
# cause: optimizer_state
import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(12)]).cuda()
# fixed: optimizer = torch.optim.Adafactor(model.parameters())
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(64, 1024, device="cuda")).sum().backward()
optimizer.step()
