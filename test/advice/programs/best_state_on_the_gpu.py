# gpu: 178MiB
# cause: model_twice
import torch
from torch import nn


def main():
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(12)]).cuda()
    best_state = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(torch.randn(512, 1024, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.load_state_dict(best_state)


main()
