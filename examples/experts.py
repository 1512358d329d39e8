"""A mixture of experts, of which each GPU has some: tokens go to the GPU of the expert they choose.

On a machine with eight GPUs:

    torchrun --nproc-per-node 8 examples/experts.py

Without any, what a GPU needs whose experts get more tokens than others:

    pytorch-memlab fit --mesh ep=8 --expert-load 1.0,2.5 examples/experts.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_to_all_single
from torch.nn import functional

WIDTH, HIDDEN, EXPERTS, CHOICES = 2048, 5632, 64, 6


class Experts(nn.Module):
    """A layer of experts, of which this rank has its part."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.own = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))
            for _ in range(EXPERTS // dist.get_world_size())
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Send each token to its experts, and weigh what they return."""
        weights, chosen = self.router(tokens).softmax(-1).topk(CHOICES)
        order = chosen.flatten().argsort()
        sent_to_experts = chosen.flatten().bincount(minlength=EXPERTS)
        received_by_expert = torch.empty_like(sent_to_experts)
        dist.all_to_all_single(received_by_expert, sent_to_experts)
        by_rank = received_by_expert.view(dist.get_world_size(), -1)
        sent = sent_to_experts.view(dist.get_world_size(), -1).sum(1).tolist()
        received = by_rank.sum(1).tolist()

        inputs = tokens[order // CHOICES]
        mine = tokens.new_empty(sum(received), WIDTH)
        mine = all_to_all_single(mine, inputs, received, sent)
        own_expert = torch.arange(len(self.own), device=tokens.device).repeat(len(by_rank))
        by_expert = own_expert.repeat_interleave(by_rank.flatten()).argsort()
        parts = mine[by_expert].split(by_rank.sum(0).tolist())
        outputs = torch.cat([expert(part) for expert, part in zip(self.own, parts, strict=True)])
        returned = torch.empty_like(inputs)
        outputs = outputs.new_empty(outputs.shape).index_copy(0, by_expert, outputs)
        returned = all_to_all_single(returned, outputs, sent, received)
        weighed = returned * weights.flatten()[order, None]
        return torch.zeros_like(tokens).index_add(0, order // CHOICES, weighed)


def train(layers: int, tokens: int) -> None:
    """Train some layers, with a batch of tokens on each rank."""
    model = nn.Sequential(*(Experts() for _ in range(layers))).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in range(100):
        batch = torch.randn(tokens, WIDTH, device="cuda", dtype=torch.bfloat16)
        functional.mse_loss(model(batch), batch).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=8192)
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    train(options.layers, options.tokens)
    dist.destroy_process_group()
