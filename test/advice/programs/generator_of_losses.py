# gpu: 128MiB
# cause: kept_graphs
import torch
from torch import nn


def steps(model, optimizer, number):
    for index in range(number):
        x = torch.randn(1024, 128, device="cuda")
        optimizer.zero_grad()
        loss = (model(x) - x).pow(2).mean()
        loss.backward()
        optimizer.step()
        yield index, (model(x) - x).abs().mean()


model = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 128)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
records = []
for record in steps(model, optimizer, 30):
    records.append(record)
print(len(records), float(records[-1][1]))
