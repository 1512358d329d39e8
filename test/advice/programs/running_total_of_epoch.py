# gpu: 128MiB
# cause: running_sum
import torch
import torch.nn as nn


class Meter:
    total = 0.0
    count = 0


def train_one_epoch(net, opt, meter):
    for i in range(40):
        x = torch.randn(1024, 256, device="cuda")
        reg = net(x).abs().mean()
        loss = net(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        meter.total = meter.total + reg
        meter.count += 1


net = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.01)
meter = Meter()
train_one_epoch(net, opt, meter)
print(float(meter.total) / meter.count)
