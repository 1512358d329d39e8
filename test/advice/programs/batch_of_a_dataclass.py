# gpu: 29MiB
# cause: batch
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class TrainConfig:
    images_per_gpu: int = 24
    image_size: int = 64
    width: int = 64
    steps: int = 2


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        w = cfg.width
        self.net = nn.Sequential(nn.Conv2d(3, w, 3, 2, 1), nn.ReLU(), nn.Conv2d(w, w, 3, 1, 1), nn.ReLU(),
                                 nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(w, 10)).cuda()
        self.opt = torch.optim.SGD(self.net.parameters(), 0.1)

    def batch(self):
        c = self.cfg
        return torch.rand(c.images_per_gpu, 3, c.image_size, c.image_size).cuda(), torch.randint(0, 10, (c.images_per_gpu,)).cuda()

    def run(self):
        for _ in range(self.cfg.steps):
            x, y = self.batch()
            loss = nn.functional.cross_entropy(self.net(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()


Trainer(TrainConfig()).run()
