# gpu: 128MiB
# cause: no_grad
import argparse

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(8))

    def forward(self, tokens):
        x = self.words(tokens)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.mean(1)


parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--texts", type=int, default=64)
args = parser.parse_args()

encoder = Encoder(1000, args.width).cuda().eval()
vectors = []
for _ in range(4):
    tokens = torch.randint(0, 1000, (args.texts, 256), device="cuda")
    vectors.append(encoder(tokens).cpu())
print(torch.cat(vectors).shape)
