# gpu: 128MiB
# cause: retained_graph
import torch
from torch import nn

cell = nn.GRUCell(256, 256).cuda()
optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)


def train():
    state = torch.zeros(2048, 256, device="cuda")
    for _ in range(20):
        # fixed: state = state.detach()
        state = state
        state = cell(torch.randn(2048, 256, device="cuda"), state)
        # fixed: state.square().mean().backward()
        state.square().mean().backward(retain_graph=True)
        optimizer.zero_grad()


train()
