# gpu: 192MiB
# cause: no_grad
import torch
import torch.nn.functional as F
from torch import nn


class Experiment:
    def __init__(self):
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
        ).cuda()
        self.opt = torch.optim.Adam(self.net.parameters())

    def step(self, images, labels):
        self.opt.zero_grad()
        loss = F.cross_entropy(self.net(images), labels)
        loss.backward()
        self.opt.step()
        return loss.item()

    def accuracy(self, images, labels):
        guesses = self.net(images).argmax(1)
        return (guesses == labels).float().mean().item()

    def run(self):
        for _ in range(3):
            images = torch.randn(16, 3, 64, 64, device="cuda")
            labels = torch.randint(0, 10, (16,), device="cuda")
            self.step(images, labels)
        images = torch.randn(128, 3, 64, 64, device="cuda")
        labels = torch.randint(0, 10, (128,), device="cuda")
        return self.accuracy(images, labels)


print(Experiment().run())
