# gpu: 128MiB
# cause: kept_graphs
import functools

import torch
from torch import nn


def remembered(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        result = function(*args, **kwargs)
        wrapper.results.append(result)
        return result

    wrapper.results = []
    return wrapper


model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@remembered
def distance(x):
    return torch.dist(model(x), x)


for _ in range(40):
    x = torch.randn(1024, 256, device="cuda")
    loss = nn.functional.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    distance(x)
print(len(distance.results))
