# gpu: 140MiB
# cause: growing_buffer
import torch
from torch import nn
from torch.nn import functional as F


class MoCo(nn.Module):
    def __init__(self, dim=1024):
        super().__init__()
        self.q, self.k = nn.Linear(512, dim), nn.Linear(512, dim)
        self.k.requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(64, dim), dim=1))

    def forward(self, a, b):
        q = F.normalize(self.q(a), dim=1)
        with torch.no_grad():
            k = F.normalize(self.k(b), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.T], 1) / 0.07
        self.queue = torch.cat([k, self.queue], 0)
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device))


net = MoCo().cuda()
opt = torch.optim.SGD(net.q.parameters(), 0.03)
for step in range(60):
    loss = net(torch.randn(256, 512, device="cuda"), torch.randn(256, 512, device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
