# gpu: 200MiB
# cause: kept_graphs
import torch
from torch import nn
class Meter:
    history = {}
    def update(self, **values):
        for name, value in values.items():
            self.history.setdefault(name, []).append(value)
class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
        self.opt = torch.optim.AdamW(self.model.parameters())
        self.meter = Meter()
    def step(self, x):
        out = self.model(x)
        loss = (out - x).pow(2).mean()
        self.opt.zero_grad(); loss.backward(); self.opt.step()
        norm = self.model(x).norm()
        self.meter.update(loss=loss.detach(), norm=norm)
def main():
    t = Trainer()
    for i in range(40):
        t.step(torch.randn(512, 512, device="cuda"))
    print(len(t.meter.history["norm"]))
main()
