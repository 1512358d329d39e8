# gpu: 44MiB
# cause: prefetch
import collections

import torch
import torch.nn as nn
from torch.utils.data import DataLoader


class GPUPrefetcher:
    """Copies batches ahead of time."""

    def __init__(self, loader, depth=24):
        self.loader = iter(loader)
        self.queue = collections.deque()
        self.depth = depth

    def fill(self):
        while len(self.queue) < self.depth:
            try:
                batch = next(self.loader)
            except StopIteration:
                return
            self.queue.append(batch.cuda(non_blocking=True))

    def __iter__(self):
        self.fill()
        while self.queue:
            yield self.queue.popleft()
            self.fill()


images = torch.randn(1024, 3, 64, 64)
net = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 31 * 31, 10)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for batch in GPUPrefetcher(DataLoader(images, batch_size=32)):
    opt.zero_grad()
    net(batch).square().mean().backward()
    opt.step()
