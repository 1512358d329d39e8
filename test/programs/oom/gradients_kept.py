# gpu: 144MiB
# cause: gradients_kept
import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(12)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(64, 1024, device="cuda")).sum().backward()
    optimizer.step()
    # fixed: optimizer.zero_grad(set_to_none=True)
    optimizer.zero_grad(set_to_none=False)
with torch.no_grad():
    model(torch.randn(4096, 1024, device="cuda"))
