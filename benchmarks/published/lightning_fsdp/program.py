"""The transformer of Lightning's guide to FSDP, with DDP and with each way to shard."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.published.adam_of_2023 import Adam

_VOCABULARY, _BLOCK, _STEPS = 33_278, 35, 4


def train(strategy: str, sharding: str = "FULL_SHARD", offload: bool = False) -> None:
    """Steps of Adam with one text of 35 words, in float32."""
    from lightning import Fabric
    from lightning.fabric.strategies import FSDPStrategy
    from lightning.pytorch.demos import Transformer

    policy: Any = {nn.TransformerEncoderLayer, nn.TransformerDecoderLayer}
    chosen: Any = strategy
    if strategy == "fsdp":
        settings: dict[str, Any] = {"sharding_strategy": sharding, "cpu_offload": offload}
        chosen = FSDPStrategy(auto_wrap_policy=policy, **settings)
    fabric = Fabric(accelerator="cuda", devices=2, strategy=chosen)
    fabric.launch()
    fabric.seed_everything(42)
    model: Any = Transformer(vocab_size=_VOCABULARY, nlayers=32, nhid=4096, ninp=1024, nhead=64)
    model = fabric.setup(model)
    # Parameters on the host took no lists.
    make: Any = torch.optim.Adam if offload else Adam
    optimizer: Any = fabric.setup_optimizers(make(model.parameters(), lr=0.1))
    words = torch.zeros(_BLOCK, dtype=torch.int64)
    for _ in range(_STEPS):
        inputs, target = fabric.to_device((words, words.clone()))
        outputs = model(inputs.unsqueeze(0), target.unsqueeze(0))
        loss = functional.nll_loss(outputs, target.view(-1))
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
