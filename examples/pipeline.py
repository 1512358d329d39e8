"""A language model in a pipeline of stages, each of which is sharded over several GPUs.

On a machine with eight GPUs:

    torchrun --nproc-per-node 8 examples/pipeline.py

Without any, what each stage needs:

    pytorch-memlab fit --ranks all --mesh pp=4,dp=2 examples/pipeline.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.nn import functional

TOKENS, WIDTH, LENGTH = 32_000, 2048, 1024


def build(index: int, stages: int, layers: int) -> nn.Sequential:
    """The part of the model that one stage has."""
    parts = [nn.Embedding(TOKENS, WIDTH)] if index == 0 else []
    parts += [
        nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, 0.0, batch_first=True)
        for _ in range(layers // stages)
    ]
    if index == stages - 1:
        parts.append(nn.Linear(WIDTH, TOKENS, bias=False))
    return nn.Sequential(*parts)


def loss_of(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The cross-entropy of one micro-batch."""
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def train(options: argparse.Namespace) -> None:
    """Train the stages of this rank for some steps."""
    mesh = init_device_mesh("cuda", (options.stages, options.replicas), mesh_dim_names=("pp", "dp"))
    rank, device = mesh["pp"].get_local_rank(), torch.device("cuda", torch.cuda.current_device())
    schedule_class = get_schedule_class(options.schedule)
    has_several = issubclass(schedule_class, PipelineScheduleMulti)
    count = options.stages * (2 if has_several else 1)
    numbers = range(rank, count, options.stages)
    stages, parameters = [], []
    for number in numbers:
        part = build(number, count, options.layers).to(device)
        for layer in (*part, part):
            fully_shard(layer, mesh=mesh["dp"], reshard_after_forward=False)
        parameters += part.parameters()
        stages.append(PipelineStage(part, number, count, device, group=mesh["pp"].get_group()))
    schedule = schedule_class(
        stages if has_several else stages[0], options.micro_batches, loss_fn=loss_of
    )
    optimizer = torch.optim.AdamW(parameters, lr=3e-4)
    for _ in range(100):
        batch = torch.randint(TOKENS, (options.micro_batches, LENGTH + 1), device=device)
        inputs = (batch[:, :-1],) if 0 in numbers else ()
        targets = {"target": batch[:, 1:]} if count - 1 in numbers else {}
        schedule.step(*inputs, **targets)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--schedule", default="GPipe")
    parser.add_argument("--micro-batches", type=int, default=8)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    train(parser.parse_args())
    dist.destroy_process_group()
