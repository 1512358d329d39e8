# gpu: 42MiB
# cause: prefetch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(4096, 2048), torch.randint(0, 10, (4096,))), batch_size=128)
device = torch.device("cuda")
# move everything to the GPU once, so that the loop is fast
batches = [(x.to(device), y.to(device)) for x, y in loader]

model = nn.Sequential(nn.Linear(2048, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in batches:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
