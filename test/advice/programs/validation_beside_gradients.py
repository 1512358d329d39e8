# gpu: 284MiB
# cause: gradients_kept
import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1536, 1536) for _ in range(8)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def validate():
    model.eval()
    with torch.no_grad():
        x = torch.randn(8192, 1536, device="cuda")
        return model(x).mean().item()


for epoch in range(2):
    model.train()
    for _ in range(2):
        x = torch.randn(64, 1536, device="cuda")
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    print(epoch, validate())
