# gpu: 128MiB
# cause: running_sum
import torch
from torch import nn

device = torch.device("cuda")
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device)
criterion = nn.CrossEntropyLoss()


def evaluate(batches):
    running_loss = 0
    for _ in range(batches):
        inputs = torch.randn(1024, 256, device=device)
        targets = torch.randint(0, 10, (1024,), device=device)
        loss = criterion(model(inputs), targets)
        (loss * 1.0).backward()
        again = criterion(model(inputs), targets)
        running_loss += again
    return running_loss / batches


print(evaluate(40))
