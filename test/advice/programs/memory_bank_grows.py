# gpu: 146MiB
# cause: growing_buffer
import torch
import torch.nn as nn
import torch.nn.functional as F


class Contrast(nn.Module):
    def __init__(self, dim=512):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, dim))
        self.register_buffer("bank", torch.zeros(1, dim))

    @torch.no_grad()
    def enqueue(self, keys):
        self.bank = torch.cat([self.bank, keys])

    def forward(self, x):
        z = F.normalize(self.encoder(x), dim=1)
        positive = (z * z.detach()).sum(1)
        negative = (z @ self.bank[:64].t()).logsumexp(1)
        self.enqueue(z)
        return (negative - positive).mean()


model = Contrast().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(40):
    loss = model(torch.randn(1024, 128, device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
