# gpu: 210MiB
# cause: kept_results
import torch
from torch import nn


def block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.Conv2d(o, o, 3, padding=1), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, classes=8):
        super().__init__()
        self.d1, self.d2, self.mid = block(3, 16), block(16, 32), block(32, 64)
        self.u2, self.u1 = block(96, 32), block(48, 16)
        self.pool, self.up = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)
        self.out = nn.Conv2d(16, classes, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(self.pool(a))
        c = self.mid(self.pool(b))
        b = self.u2(torch.cat([self.up(c), b], 1))
        return self.out(self.u1(torch.cat([self.up(b), a], 1)))


class DiceMetric:
    def __init__(self):
        self.reset()

    def reset(self):
        self.preds, self.targets = [], []

    def update(self, probs, target):
        self.preds.append(probs)
        self.targets.append(target)

    def compute(self):
        p, t = torch.cat(self.preds), torch.cat(self.targets)
        return ((p.argmax(1) == t).float().mean()).item()


model = UNet().cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
crit = nn.CrossEntropyLoss()
metric = DiceMetric()
for epoch in range(2):
    model.train()
    for _ in range(3):
        x, y = torch.randn(4, 3, 128, 128).cuda(), torch.randint(8, (4, 128, 128)).cuda()
        loss = crit(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        for _ in range(40):
            x, y = torch.randn(4, 3, 128, 128).cuda(), torch.randint(8, (4, 128, 128)).cuda()
            metric.update(model(x).softmax(1), y)
    print(epoch, metric.compute())
    metric.reset()
