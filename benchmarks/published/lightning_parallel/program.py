"""Lightning's examples of tensor parallelism: a feed-forward layer, and Llama 2 with FSDP."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional

_WIDTH, _HIDDEN, _LAYERS, _HEADS = 4096, 11_008, 32, 32
_VOCABULARY, _POSITIONS = 32_000, 4096


class FeedForward(nn.Module):
    """Three linear layers."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)
        self.w3 = nn.Linear(width, hidden, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The gated product."""
        outputs: torch.Tensor = self.w2(functional.silu(self.w1(inputs)) * self.w3(inputs))
        return outputs


def _split_feed_forward(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    plan = {"w1": ColwiseParallel(), "w2": RowwiseParallel(), "w3": ColwiseParallel()}
    parallelize_module(model, mesh["tensor_parallel"], plan)
    return model


def feed_forward(devices: int) -> None:
    """Steps of AdamW of a layer of 8,192 x 8,192, split among GPUs."""
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import ModelParallelStrategy

    settings: dict[str, Any] = {}
    if devices > 1:
        settings["strategy"] = ModelParallelStrategy(parallelize_fn=_split_feed_forward)
    fabric = Fabric(accelerator="cuda", devices=devices, **settings)
    fabric.launch()
    model = fabric.setup(FeedForward(8192, 8192))
    optimizer: Any = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=3e-3))
    data: Any = torch.randn(64, 8192)
    batches = fabric.setup_dataloaders(torch.utils.data.DataLoader(data, batch_size=8))
    for batch in batches:
        loss = model(batch).sum()
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()


class _Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(_WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        outputs = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x)
        return outputs * self.weight


def _rotated(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[None, : x.shape[1], None]).flatten(3).type_as(x)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = _HEADS
        self.wq, self.wk, self.wv, self.wo = (
            nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(4)
        )

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        shape = (batch, length, self.heads, _WIDTH // _HEADS)
        query, key, value = (layer(x).view(shape) for layer in (self.wq, self.wk, self.wv))
        query, key = _rotated(query, turns), _rotated(key, turns)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        outputs: torch.Tensor = self.wo(mixed.transpose(1, 2).contiguous().view(batch, length, -1))
        return outputs


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed_forward = _Attention(), FeedForward(_WIDTH, _HIDDEN)
        self.attention_norm, self.ffn_norm = _Norm(), _Norm()

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), turns)
        outputs: torch.Tensor = x + self.feed_forward(self.ffn_norm(x))
        return outputs


class _Llama(nn.Module):
    turns: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(_VOCABULARY, _WIDTH)
        self.register_buffer("turns", self._turns())
        self.layers = nn.ModuleDict({str(number): _Block() for number in range(_LAYERS)})
        self.norm = _Norm()
        self.output = nn.Linear(_WIDTH, _VOCABULARY, bias=False)

    def _turns(self) -> torch.Tensor:
        steps = 10_000 ** -(torch.arange(0, _WIDTH // _HEADS, 2).float() / (_WIDTH // _HEADS))
        angles = torch.outer(torch.arange(_POSITIONS).float(), steps)
        return torch.polar(torch.ones_like(angles), angles)

    def init_weights(self) -> None:
        with torch.device(self.turns.device):
            self.turns = self._turns()
        nn.init.normal_(self.tok_embeddings.weight)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            x = layer(x, self.turns)
        outputs: torch.Tensor = self.output(self.norm(x)).float()
        return outputs


_ENDS = {
    "tok_embeddings": RowwiseParallel(input_layouts=Replicate()),
    "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    "norm": SequenceParallel(),
    "layers.0": PrepareModuleInput(
        input_layouts=(Replicate(), None),
        desired_input_layouts=(Shard(1), None),
        use_local_output=True,
    ),
}
_BLOCK = {
    "attention": PrepareModuleInput(
        input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
    ),
    **{f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
    "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
    "attention_norm": SequenceParallel(),
    "feed_forward": PrepareModuleInput(
        input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
    ),
    **{f"feed_forward.{name}": ColwiseParallel() for name in ("w1", "w3")},
    "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
    "ffn_norm": SequenceParallel(),
}


def _split(model: Any, mesh: DeviceMesh) -> None:
    data, tensor = mesh["data_parallel"], mesh["tensor_parallel"]
    parallelize_module(model, tensor, _ENDS)
    for block in model.layers.values():
        block.attention.heads //= tensor.size()
        parallelize_module(block, tensor, _BLOCK)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for name, block in list(model.layers.items()):
        is_last = int(name) == _LAYERS - 1
        wrapped = checkpoint_wrapper(block)
        fully_shard(wrapped, mesh=data, mp_policy=policy, reshard_after_forward=not is_last)
        model.layers[name] = wrapped
    fully_shard(model, mesh=data, mp_policy=policy)


class _Tokens(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(129, dtype=torch.int64)


def llama() -> None:
    """Three steps of the Trainer: two GPUs share each product, two the data and all states."""
    import lightning
    from lightning.pytorch.strategies import ModelParallelStrategy

    class _Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = _Llama()

        def configure_model(self) -> None:
            _split(self.model, self.device_mesh)

        def on_train_start(self) -> None:
            self.model.init_weights()

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            scores = self.model(batch[:, :-1])
            with loss_parallel():
                return functional.cross_entropy(
                    scores.reshape(-1, scores.size(-1)), batch[:, 1:].reshape(-1)
                )

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.model.parameters(), lr=3e-3, foreach=True)

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(_Tokens(), batch_size=8)

    trainer = lightning.Trainer(
        accelerator="cuda",
        devices=4,
        strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=2),
        limit_train_batches=3,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    with trainer.init_module(empty_init=True):
        model = _Module()
    trainer.fit(model)
