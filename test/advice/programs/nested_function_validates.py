# gpu: 100MiB
# cause: no_grad
import torch
from torch import nn


def main():
    net = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8)]).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def loss_of(size):
        x = torch.randn(size, 256, device="cuda")
        return (net(x) - x).square().mean()

    def check(size):
        def inner():
            return loss_of(size)

        net.eval()
        value = inner().item()
        net.train()
        return value

    for _ in range(3):
        optimizer.zero_grad()
        loss_of(1024).backward()
        optimizer.step()
        print(check(16384))


main()
