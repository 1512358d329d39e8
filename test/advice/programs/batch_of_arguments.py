# gpu: 144MiB
# cause: batch
import argparse

import torch
from torch import nn


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=3)
    return parser.parse_args()


def main():
    args = get_args()
    net = nn.Sequential(
        nn.Linear(784, args.hidden), nn.LayerNorm(args.hidden), nn.GELU(), nn.Dropout(0.1),
        nn.Linear(args.hidden, args.hidden), nn.LayerNorm(args.hidden), nn.GELU(), nn.Dropout(0.1),
        nn.Linear(args.hidden, 10),
    ).to("cuda")
    opt = torch.optim.Adam(net.parameters(), fused=True)
    for _ in range(args.steps):
        x = torch.randn(args.batch_size, 8, 784, device="cuda")
        y = torch.randint(0, 10, (args.batch_size * 8,), device="cuda")
        loss = nn.functional.cross_entropy(net(x).flatten(0, 1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()


main()
