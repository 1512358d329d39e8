"""Fine-tuning of a vision transformer, with Fabric's precisions and strategies."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional

from benchmarks.published.adam_of_2023 import Adam

_WIDTH = 1024


_attention = functional.scaled_dot_product_attention


def _first_flash_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *settings: Any
) -> torch.Tensor:
    """Attention as until July 2023, whose kernel for half precision took and gave rows of batches.

    The layer has batches of rows, so that inputs and the result are copied. See
    ``_scaled_dot_product_flash_attention_cuda`` in
    https://github.com/pytorch/pytorch/blob/v2.0.1/aten/src/ATen/native/transformers/cuda/attention.cu.
    """
    if query.dtype.itemsize == 2:
        query, key, value = (
            tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (query, key, value)
        )
    return _attention(query, key, value, *settings)


class EncoderBlock(nn.Module):
    """A layer of ViT-L: attention and two linear layers, each after a norm, without dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(_WIDTH, eps=1e-6) for _ in range(2))
        self.attention = nn.MultiheadAttention(_WIDTH, 16, batch_first=True)
        hidden = 4 * _WIDTH
        self.mlp = nn.Sequential(nn.Linear(_WIDTH, hidden), nn.GELU(), nn.Linear(hidden, _WIDTH))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Both parts, each added to its input."""
        normed = self.norms[0](inputs)
        with patch.object(functional, "scaled_dot_product_attention", _first_flash_attention):
            attended, _ = self.attention(normed, normed, normed, need_weights=False)
        inputs = attended + inputs
        outputs: torch.Tensor = inputs + self.mlp(self.norms[1](inputs))
        return outputs


class VisionTransformer(nn.Module):
    """ViT-L with patches of 16 x 16 pixels of images of 224 x 224."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, _WIDTH, kernel_size=16, stride=16)
        self.class_token = nn.Parameter(torch.zeros(1, 1, _WIDTH))
        self.positions = nn.Parameter(torch.zeros(1, 14 * 14 + 1, _WIDTH))
        self.layers = nn.Sequential(*(EncoderBlock() for _ in range(24)))
        self.norm = nn.LayerNorm(_WIDTH, eps=1e-6)
        self.head = nn.Linear(_WIDTH, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        token = self.class_token.expand(len(images), -1, -1)
        hidden = torch.cat([token, patches], dim=1) + self.positions
        return self.head(self.norm(self.layers(hidden))[:, 0])  # type: ignore[no-any-return]


class _Data(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Images of the size that the model takes; as many as make the last batch a part of one."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index >= self._length:
            raise IndexError(index)
        return torch.zeros(3, 224, 224), index % 10


def finetune(
    batch: int,
    precision: str = "32-true",
    optimizer: str = "Adam",
    accumulate: int = 1,
    devices: int = 1,
) -> None:
    """Three steps of the optimizer, then one whole and one smaller batch of the validation data."""
    from torchmetrics.classification import MulticlassAccuracy

    fabric = _fabric(precision, devices)
    with fabric.init_module(empty_init=False) if devices > 1 else torch.device("cpu"):
        model: Any = VisionTransformer(10)
    make: Any = {"Adam": Adam, "SGD": torch.optim.SGD}[optimizer]
    rule: Any = make(model.parameters(), lr=5e-5)
    model, rule = fabric.setup(model, rule, move_to_device=devices == 1)
    training, validation = fabric.setup_dataloaders(
        *(
            torch.utils.data.DataLoader(_Data(count), batch_size=batch)
            for count in ((2 * accumulate + 1) * batch * devices, batch * devices + batch // 2)
        )
    )
    accuracy = MulticlassAccuracy(num_classes=10, average="micro", validate_args=False).to(
        fabric.device
    )
    for index, (images, labels) in enumerate(training):
        model.train()
        scores = model(images)
        loss = functional.cross_entropy(scores, labels) / accumulate
        if accumulate == 1:
            rule.zero_grad()
        fabric.backward(loss)
        if index % accumulate == 0:
            rule.step()
            if accumulate > 1:
                rule.zero_grad()
        model.eval()
        with torch.no_grad():
            accuracy.update(scores.argmax(1), labels)
    with torch.no_grad():
        for images, labels in validation:
            accuracy.update(model(images).argmax(1), labels)


def _fabric(precision: Any, devices: int) -> Any:
    from functools import partial

    from lightning.fabric import Fabric
    from lightning.fabric.strategies import FSDPStrategy
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    if devices == 1:
        return Fabric(accelerator="cuda", devices=1, precision=precision)
    policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={EncoderBlock})
    strategy = FSDPStrategy(
        auto_wrap_policy=policy, activation_checkpointing_policy={EncoderBlock}, cpu_offload=True
    )
    fabric = Fabric(accelerator="cuda", devices=devices, strategy=strategy, precision=precision)
    fabric.launch()
    return fabric


def finetune_text(sharded: str) -> None:
    """Steps of DistilBERT with texts of 512 tokens: by DeepSpeed's ZeRO, or by FSDP on the host."""
    from torchmetrics.classification import MulticlassAccuracy
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    offloaded = sharded == "offloaded"
    fabric, batch, accumulate = _fabric_of_text(offloaded), 3 if offloaded else 12, 1
    if offloaded:
        accumulate = 4
    config = DistilBertConfig(num_labels=2, attn_implementation="eager")
    with fabric.init_module(empty_init=False) if offloaded else torch.device("cpu"):
        model: Any = DistilBertForSequenceClassification(config)
    rule: Any = Adam(model.parameters(), lr=5e-5)
    model, rule = fabric.setup(model, rule, move_to_device=not offloaded)
    accuracy = MulticlassAccuracy(num_classes=2, average="micro", validate_args=False).to(
        fabric.device
    )
    for index in range(2 * accumulate + 1):
        tokens = torch.zeros(batch, 512, dtype=torch.int64)
        tokens, mask, labels = fabric.to_device(
            (tokens, torch.ones_like(tokens), torch.zeros(batch, dtype=torch.int64))
        )
        model.train()
        outputs = model(tokens, attention_mask=mask, labels=labels)
        if accumulate == 1:
            rule.zero_grad()
        fabric.backward(outputs["loss"] / accumulate)
        if index % accumulate == 0:
            rule.step()
            if accumulate > 1:
                rule.zero_grad()
        model.eval()
        with torch.no_grad():
            accuracy.update(outputs["logits"].argmax(1), labels)


def _fabric_of_text(offloaded: bool) -> Any:
    from functools import partial

    from lightning.fabric import Fabric
    from lightning.fabric.strategies import FSDPStrategy
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
    from transformers.models.distilbert.modeling_distilbert import TransformerBlock

    policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={TransformerBlock})
    strategy: Any = "deepspeed_stage_2"
    if offloaded:
        strategy = FSDPStrategy(auto_wrap_policy=policy, cpu_offload=True)
    precision: Any = "bf16-true" if offloaded else "16-mixed"
    fabric = Fabric(accelerator="cuda", devices=4, strategy=strategy, precision=precision)
    fabric.launch()
    return fabric


def move_to_gpu() -> None:
    """The model in float32 on the GPU, then in float16."""
    VisionTransformer(1000).cuda().half()


def make_on_gpu() -> None:
    """The model in float16 on the GPU from the beginning."""
    with _fabric("16-true", 1).init_module():
        VisionTransformer(1000)
