# gpu: 128MiB
# cause: no_grad
"""A script with a main function that trains, then validates."""
import torch
from torch import nn


def make_model(width):
    layers = []
    for _ in range(6):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def train(model, optimizer, loss_fn):
    model.train()
    for _ in range(3):
        x = torch.randn(256, 256, device="cuda")
        y = torch.randint(0, 10, (256,), device="cuda")
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()


def validate(model, loss_fn):
    model.eval()
    losses = []
    for _ in range(6):
        x = torch.randn(8192, 256, device="cuda")
        y = torch.randint(0, 10, (8192,), device="cuda")
        losses.append(loss_fn(model(x), y))
    return torch.stack(losses).mean().item()


def main():
    model = make_model(256).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(2):
        train(model, optimizer, loss_fn)
        print(epoch, validate(model, loss_fn))


if __name__ == "__main__":
    main()
