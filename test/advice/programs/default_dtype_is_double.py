# gpu: 334MiB
# cause: double_precision
import torch
from torch import nn

torch.set_default_dtype(torch.float64)

class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(256, 1024), nn.SiLU(), nn.Linear(1024, 32))
        self.dec = nn.Sequential(nn.Linear(32, 1024), nn.SiLU(), nn.Linear(1024, 256))

    def forward(self, x):
        return self.dec(self.enc(x))

ae = Autoencoder().to("cuda")
opt = torch.optim.Adam(ae.parameters(), lr=1e-3)
for _ in range(3):
    x = torch.rand(8192, 256).to("cuda")
    loss = ((ae(x) - x) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
