"""Training of a small GPT as a benchmark on A10 GPUs does it: DDP, FSDP, ZeRO 2 and ZeRO 3."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn
from torch.nn import functional

_VOCABULARY, _WIDTH, _HEADS, _LAYERS, _LENGTH = 32_000, 1024, 16, 16, 2048
_ACCUMULATION = 4
_STEPS = 3


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(_WIDTH)
        self.attn = nn.MultiheadAttention(_WIDTH, _HEADS, dropout=0.1, batch_first=True)
        self.ln_2 = nn.LayerNorm(_WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(_WIDTH, 4 * _WIDTH),
            nn.GELU(),
            nn.Linear(4 * _WIDTH, _WIDTH),
            nn.Dropout(0.1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed, _ = self.attn(self.ln_1(x), self.ln_1(x), self.ln_1(x))
        x = x + mixed
        outputs: torch.Tensor = x + self.mlp(self.ln_2(x))
        return outputs


class _Model(nn.Module):
    """Attention that gives its weights back, three norms of its input, and one embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(_VOCABULARY, _WIDTH),
                "wpe": nn.Embedding(_LENGTH, _WIDTH),
                "drop": nn.Dropout(0.1),
                "h": nn.ModuleList(_Block() for _ in range(_LAYERS)),
                "ln_f": nn.LayerNorm(_WIDTH),
            }
        )
        self.lm_head = nn.Linear(_WIDTH, _VOCABULARY, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight

    def forward(
        self, tokens: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.arange(tokens.size(1), device=tokens.device).unsqueeze(0)
        parts: Any = self.transformer
        embedded, placed = parts["wte"](tokens), parts["wpe"](places)
        x = parts["drop"](embedded + placed)
        for block in parts["h"]:
            x = block(x)
        x = parts["ln_f"](x)
        scores = self.lm_head(x)
        rows = scores.view(-1, scores.size(-1))
        return scores, functional.cross_entropy(rows, targets.view(-1), ignore_index=-1)


def _engine(model: nn.Module, stage: int) -> Any:
    import deepspeed

    from benchmarks.published.deepspeed_kernels import replace_kernels

    replace_kernels()
    sharding: dict[str, Any] = {
        "stage": stage,
        "offload_optimizer": {"device": "none"},
        "offload_param": {"device": "none"},
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": 5e8,
    }
    if stage == 2:
        sharding |= {
            "allgather_partitions": True,
            "allgather_bucket_size": 5e8,
            "reduce_scatter": True,
            "round_robin_gradients": True,
        }
    else:
        sharding |= {
            "sub_group_size": 1e9,
            "stage3_prefetch_bucket_size": 5e8,
            "stage3_param_persistence_threshold": 1e5,
            "stage3_max_live_parameters": 1e9,
            "stage3_max_reuse_distance": 1e9,
            "stage3_gather_16bit_weights_on_model_save": True,
        }
    rule = {"lr": 1e-4, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}
    schedule = {"warmup_min_lr": 0, "warmup_max_lr": 1e-4, "warmup_num_steps": 5}
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": _ACCUMULATION,
        "train_batch_size": _ACCUMULATION * int(os.environ["WORLD_SIZE"]),
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": sharding,
        "optimizer": {"type": "AdamW", "params": rule},
        "scheduler": {"type": "WarmupLR", "params": schedule},
    }
    return deepspeed.initialize(model=model, config=settings)[0]


def _wrapped(model: nn.Module, strategy: str) -> nn.Module:
    from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

    if strategy == "ddp":
        return nn.parallel.DistributedDataParallel(model, device_ids=[0], output_device=0)
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=size_based_auto_wrap_policy,
        cpu_offload=CPUOffload(offload_params=False),
        device_id=0,
    )


def train(strategy: str) -> None:
    """Steps of rank 0, whose peak begins when the model is wrapped."""
    torch.distributed.init_process_group("nccl")
    model: Any = _Model().to("cuda:0")
    stage = {"zero2": 2, "zero3": 3}.get(strategy)
    optimizer: Any = None
    scaler: Any = None
    if stage is None:
        model = _wrapped(model, strategy)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
        scaler = torch.amp.GradScaler("cuda")
    else:
        model = _engine(model, stage)
    torch.cuda.reset_peak_memory_stats(0)
    model.train()
    for _step in range(_STEPS if stage is None else _STEPS * _ACCUMULATION):
        batch = torch.zeros(1, _LENGTH, dtype=torch.int64).to("cuda:0")
        targets = batch.clone()
        if stage is not None:
            _scores, loss = model(batch, targets)
            model.backward(loss)
            model.step()
            continue
        with torch.amp.autocast("cuda"):
            _scores, loss = model(batch, targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
