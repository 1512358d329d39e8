# gpu: 128MiB
# cause: kept_graphs
import torch
from torch import nn


class Run:
    def __init__(self):
        self.losses = []
        self.loss_list = []
        self.model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train(self):
        losses = []
        for _ in range(40):
            x = torch.randn(1024, 256, device="cuda")
            loss = (self.model(x) - x).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
            penalty = self.model(x).square().mean()
            self.losses.append(penalty)
            self.loss_list.append(float(loss))
        return losses


run = Run()
print(len(run.train()), len(run.losses), len(run.loss_list))
