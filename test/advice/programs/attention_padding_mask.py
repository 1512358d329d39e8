# gpu: 320MiB
# cause: attention_matrices
import torch
from torch import nn


def attend(query, key, value, padding):
    scores = torch.matmul(query, key.transpose(-2, -1)) / query.size(-1) ** 0.5
    scores = scores.masked_fill(padding[:, None, None, :], -1e9)
    weights = torch.softmax(scores, dim=-1)
    return torch.matmul(weights, value)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(256, 256)
        self.k = nn.Linear(256, 256)
        self.v = nn.Linear(256, 256)

    def heads(self, x):
        return x.unflatten(-1, (8, 32)).transpose(1, 2)

    def forward(self, x, padding):
        y = attend(self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x)), padding)
        return x + y.transpose(1, 2).flatten(2)


layers = [Layer().cuda() for _ in range(4)]
x = torch.randn(4, 768, 256, device="cuda")
padding = torch.zeros(4, 768, dtype=torch.bool, device="cuda")
for layer in layers:
    x = layer(x, padding)
x.square().mean().backward()
