# gpu: 68MiB
# cause: no_grad
import torch
from torch import nn


class Inception(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 32, 3, 2), nn.ReLU(), nn.Conv2d(32, 64, 3, 2), nn.ReLU(), nn.Conv2d(64, 128, 3, 2), nn.ReLU())

    def forward(self, x):
        return self.features(x).mean((2, 3))


def compute_statistics(net, make_images, n):
    feats = []
    for _ in range(n):
        feats.append(net(make_images()))
    feats = torch.cat(feats)
    return feats.mean(0), torch.cov(feats.T)


inception = Inception().cuda().eval()
generator = nn.Sequential(nn.Linear(64, 3 * 64 * 64), nn.Tanh()).cuda()


def fake():
    return generator(torch.randn(16, 64, device="cuda")).view(-1, 3, 64, 64)


def real():
    return torch.rand(16, 3, 64, 64, device="cuda")


m1, s1 = compute_statistics(inception, real, 10)
m2, s2 = compute_statistics(inception, fake, 10)
print((m1 - m2).square().sum().item())
