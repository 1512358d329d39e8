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
    groups = _groups(model)
    if name == "Adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(groups, lr=5e-5, scale_parameter=False, relative_step=False)
    if name == "Adam8bit":
        from bitsandbytes.optim import Adam8bit

        return Adam8bit(groups, lr=5e-5)
    return _AdamW(groups, {"lr": 5e-5})


def _groups(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Weights before biases and norms, as the Trainer orders them, whose weights alone decay."""
    norms = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, torch.nn.LayerNorm)
        for parameter in module.parameters()
    }
    ordered: tuple[list[Any], list[Any]] = ([], [])
    for name, parameter in model.named_parameters():
        ordered[id(parameter) in norms or "bias" in name].append(parameter)
    return [{"params": parameters} for parameters in ordered]


class _AdamW(torch.optim.Optimizer):
    """AdamW of transformers, the Trainer's default of 2022, which corrects the rate alone.

    See https://github.com/huggingface/transformers/blob/v4.21.0/src/transformers/optimization.py.
    """

    @torch.no_grad()
    def step(self, _closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["count"] = 0
                    state["mean"] = torch.zeros_like(parameter)
                    state["square"] = torch.zeros_like(parameter)
                state["count"] += 1
                gradient, mean, square = parameter.grad, state["mean"], state["square"]
                mean.mul_(0.9).add_(gradient, alpha=0.1)
                square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
                root = square.sqrt().add_(1e-6)
                corrections = 1 - 0.999 ** state["count"], 1 - 0.9 ** state["count"]
                rate = group["lr"] * corrections[0] ** 0.5 / corrections[1]
                parameter.addcdiv_(mean, root, value=-rate)
