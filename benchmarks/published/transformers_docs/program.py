"""Training of BERT large as the guide of transformers measures it."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

_LENGTH = 512
_STEPS = 2


class _Softmax(torch.autograd.Function):
    """Softmax as of PyTorch 1.10, which kept its input too.

    See https://github.com/pytorch/pytorch/pull/65242.
    """

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, dim: int) -> torch.Tensor:
        result = torch.softmax(inputs, dim)
        ctx.save_for_backward(inputs, result)
        ctx.dim = dim
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        inputs, result = ctx.saved_tensors
        return torch._softmax_backward_data(gradient, result, ctx.dim, inputs.dtype), None


def _softmax(inputs: torch.Tensor, dim: int) -> torch.Tensor:
    return _Softmax.apply(inputs, dim)  # type: ignore[no-any-return,no-untyped-call]


def _model() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=30522,
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        attn_implementation="eager",
    )
    return BertForSequenceClassification(config).cuda()


def load() -> None:
    """The model alone."""
    _model()


def train(
    batch: int = 4,
    accumulate: int = 1,
    optimizer: str = "AdamW",
    checkpointing: bool = False,
    float16: bool = False,
) -> None:
    """Steps as of the Trainer with transformers 4.18, when gradients were zeroed in place."""
    functional.softmax = _softmax  # type: ignore[assignment]
    model = _model().train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    rule = _optimizer(optimizer, model)
    scaler = torch.amp.GradScaler(enabled=float16)
    for _ in range(_STEPS):
        for _ in range(accumulate):
            tokens = torch.randint(100, 30000, (batch, _LENGTH)).cuda()
            labels = torch.zeros(batch, dtype=torch.int64).cuda()
            with torch.autocast("cuda", torch.float16, enabled=float16):
                loss = model(input_ids=tokens, labels=labels).loss
            scaler.scale(loss / accumulate).backward()
        scaler.unscale_(rule)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        scaler.step(rule)
        scaler.update()
        rule.zero_grad(set_to_none=False)


def _optimizer(name: str, model: Any) -> Any:
    if name == "Adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(model.parameters(), lr=5e-5, scale_parameter=False, relative_step=False)
    if name == "Adam8bit":
        from bitsandbytes.optim import Adam8bit

        return Adam8bit(model.parameters(), lr=5e-5)
    return torch.optim.AdamW(model.parameters(), lr=5e-5, foreach=False)
