# gpu: 64MiB
# cause: double_precision
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Series(Dataset):
    def __init__(self, n=256, length=200):
        self.data = np.cumsum(np.random.randn(n, length, 16), axis=1)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return torch.tensor(self.data[i])


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(16, 128, 5, padding=2)
        self.conv2 = nn.Conv1d(128, 16, 5, padding=2)

    def forward(self, x):
        return self.conv2(torch.relu(self.conv(x.transpose(1, 2)))).transpose(1, 2)


def main(device="cuda"):
    net = Forecaster().to(device).double()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    for batch in DataLoader(Series(), batch_size=128):
        batch = batch.to(device)
        loss = nn.functional.l1_loss(net(batch)[:, :-1], batch[:, 1:])
        opt.zero_grad()
        loss.backward()
        opt.step()


main()
