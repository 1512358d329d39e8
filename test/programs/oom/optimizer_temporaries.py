# gpu: 256MiB
# cause: optimizer_temporaries
import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(12)]).cuda()
# fixed: optimizer = torch.optim.AdamW(model.parameters(), fused=True)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.randn(64, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
