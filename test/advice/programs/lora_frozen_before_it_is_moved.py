# gpu: 198MiB
# cause: full_precision_base
import torch
from torch import nn


class LoRALinear(nn.Module):
    def __init__(self, base, r=8):
        super().__init__()
        self.base = base
        self.A = nn.Parameter(torch.randn(r, base.in_features) * 0.01)
        self.B = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + x @ self.A.T @ self.B.T


class Mlp(nn.Module):
    def __init__(self, d=1024):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


model = nn.Sequential(*(Mlp() for _ in range(6)))
model.requires_grad_(False)
for block in model:
    block.up, block.down = LoRALinear(block.up), LoRALinear(block.down)
model.cuda()
opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
for step in range(3):
    x = torch.randn(2, 64, 1024, device="cuda")
    loss = (model(x) - x).pow(2).mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
