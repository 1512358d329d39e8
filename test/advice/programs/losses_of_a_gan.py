# gpu: 300MiB
# cause: kept_graphs
import torch
from torch import nn, optim

nz, size, batch = 64, 32, 64
G = nn.Sequential(
    nn.ConvTranspose2d(nz, 128, 4, 1, 0),
    nn.BatchNorm2d(128),
    nn.ReLU(True),
    nn.ConvTranspose2d(128, 64, 4, 2, 1),
    nn.BatchNorm2d(64),
    nn.ReLU(True),
    nn.ConvTranspose2d(64, 32, 4, 2, 1),
    nn.BatchNorm2d(32),
    nn.ReLU(True),
    nn.ConvTranspose2d(32, 3, 4, 2, 1),
    nn.Tanh(),
).cuda()
D = nn.Sequential(
    nn.Conv2d(3, 32, 4, 2, 1),
    nn.LeakyReLU(0.2),
    nn.Conv2d(32, 64, 4, 2, 1),
    nn.LeakyReLU(0.2),
    nn.Conv2d(64, 1, 8),
    nn.Flatten(),
).cuda()
optG, optD = optim.Adam(G.parameters(), 2e-4), optim.Adam(D.parameters(), 2e-4)
bce = nn.BCEWithLogitsLoss()
d_losses, g_losses = [], []
for it in range(30):
    real = torch.randn(batch, 3, size, size, device="cuda")
    ones, zeros = torch.ones(batch, 1, device="cuda"), torch.zeros(batch, 1, device="cuda")
    fake = G(torch.randn(batch, nz, 1, 1, device="cuda"))
    errD = bce(D(real), ones) + bce(D(fake), zeros)
    optD.zero_grad()
    errD.backward(retain_graph=True)
    optD.step()
    errG = bce(D(fake), ones)
    optG.zero_grad()
    errG.backward()
    optG.step()
    d_losses.append(errD)
    g_losses.append(errG)
print(torch.stack(d_losses).mean().item(), torch.stack(g_losses).mean().item())
