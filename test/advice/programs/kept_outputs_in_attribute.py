# gpu: 128MiB
# cause: kept_graphs
import torch
from torch import nn


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.outputs = []

    def training_step(self, batch):
        out = self.model(batch)
        self.outputs.append(out)
        loss = out.square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def watch(self, batch):
        self.outputs.append(self.model(batch))


def main():
    model = nn.Sequential(nn.Linear(128, 1024), nn.GELU(), nn.Linear(1024, 16)).cuda()
    trainer = Trainer(model)
    for _ in range(20):
        trainer.training_step(torch.randn(1024, 128, device="cuda"))
        trainer.watch(torch.randn(1024, 128, device="cuda"))
    print(len(trainer.outputs))


main()
