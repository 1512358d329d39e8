# gpu: 194MiB
# cause: none
import torch
from torch import nn

G = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 784)).cuda()
D = nn.Sequential(nn.Linear(784, 1024), nn.LeakyReLU(0.2), nn.Linear(1024, 1)).cuda()
opt_g = torch.optim.SGD(G.parameters(), lr=0.01)
opt_d = torch.optim.SGD(D.parameters(), lr=0.01)
bce = nn.BCEWithLogitsLoss()
for it in range(3):
    real = torch.randn(4096, 784, device="cuda")
    fake = G(torch.randn(4096, 64, device="cuda"))
    ones, zeros = torch.ones(4096, 1, device="cuda"), torch.zeros(4096, 1, device="cuda")
    d_loss = bce(D(real), ones) + bce(D(fake.detach()), zeros)
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
    g_loss = bce(D(fake), ones)
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
