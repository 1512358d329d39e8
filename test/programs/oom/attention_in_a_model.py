# gpu: 512MiB
# cause: attention_matrices
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(512, 1536)
        self.mlp = nn.Sequential(nn.Linear(512, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 512))

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 8, 64)).permute(2, 0, 3, 1, 4)
        # fixed: y = nn.functional.scaled_dot_product_attention(q, k, v)
        scores = q @ k.mT / 8
        # fixed: return x + self.mlp(y.transpose(1, 2).flatten(2))
        y = scores.softmax(-1) @ v
        return x + self.mlp(y.transpose(1, 2).flatten(2))


model = nn.Sequential(*(Block() for _ in range(3))).cuda()
for _ in range(2):
    model(torch.randn(4, 1024, 512, device="cuda")).pow(2).mean().backward()
