# gpu: 768MiB
# cause: batch
import torch
from torch import nn

SAMPLES = 24
query, key, value, last = (nn.Linear(512, 512).cuda() for _ in range(4))
# fixed: x = torch.randn(SAMPLES // 2, 512, 512, device="cuda")
x = torch.randn(SAMPLES, 512, 512, device="cuda")


def relu_attention(x):
    q, k, v = (one(x).unflatten(-1, (8, 64)).transpose(1, 2) for one in (query, key, value))
    return ((q @ k.mT).relu() @ v).transpose(1, 2).flatten(2)


last(relu_attention(relu_attention(x))).pow(2).sum().backward()
