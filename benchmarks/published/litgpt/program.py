"""LitGPT's fine-tuning and generation, with its own models, losses and quantization."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

_MEDIAN = 110  # tokens of a text of the data, as LitGPT's page on memory says
_PROMPT = 5  # tokens of "Hello, my name is"


def _fabric(quantize: str, devices: int = 1) -> Any:
    from lightning.fabric import Fabric
    from lightning.fabric.plugins import BitsandbytesPrecision
    from lightning.fabric.strategies import FSDPStrategy
    from litgpt.lora import Block

    if quantize:
        plugin = BitsandbytesPrecision(quantize, torch.bfloat16)
        return Fabric(accelerator="cuda", devices=1, plugins=plugin)
    if devices == 1:
        return Fabric(accelerator="cuda", devices=1, precision="bf16-true")
    strategy = FSDPStrategy(
        auto_wrap_policy={Block},
        activation_checkpointing_policy={Block},
        state_dict_type="full",
        limit_all_gathers=True,
        cpu_offload=False,
    )
    fabric = Fabric(accelerator="cuda", devices=devices, strategy=strategy, precision="bf16-true")
    fabric.launch()
    return fabric


class _Product(torch.autograd.Function):
    """A product with a weight in 4 bits, as of bitsandbytes 0.41.

    It expands the weight to float16 and casts it, and keeps its input, which no gradient needs.
    """

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: Any, bias: Any, state: Any) -> torch.Tensor:
        ctx.kept = inputs, weight, state
        return nn.functional.linear(inputs, _expanded(weight, state, inputs.dtype), bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        _, weight, state = ctx.kept
        return gradient @ _expanded(weight, state, gradient.dtype), None, None, None


def _expanded(weight: Any, state: Any, dtype: torch.dtype) -> torch.Tensor:
    from bitsandbytes.functional import dequantize_4bit

    expanded: torch.Tensor = dequantize_4bit(weight, state)
    return expanded.to(dtype)


def _multiply_as_of_0_41(network: nn.Module) -> None:
    """Take the products of the published release of bitsandbytes, which quantized from float16."""
    import bitsandbytes

    for weight in network.parameters():
        state = getattr(weight, "quant_state", None)
        if state is not None:
            state.dtype = torch.float16
    one_token = bitsandbytes.matmul_4bit

    def multiply(inputs: torch.Tensor, weight: Any, bias: Any, quant_state: Any) -> torch.Tensor:
        if inputs.numel() == inputs.shape[-1] and not inputs.requires_grad:
            return one_token(inputs, weight, bias=bias, quant_state=quant_state)  # type: ignore[no-any-return]
        return _Product.apply(inputs, weight, bias, quant_state)  # type: ignore[no-any-return,no-untyped-call]

    bitsandbytes.matmul_4bit = multiply


def _lora(name: str) -> tuple[Any, Any, Any]:
    from litgpt.lora import GPT, Config, mark_only_lora_as_trainable

    settings = {"lora_r": 8, "lora_alpha": 16, "lora_dropout": 0.05}
    config = Config.from_name(name, lora_query=True, lora_value=True, **settings)
    return GPT, config, mark_only_lora_as_trainable


def _adapter(name: str) -> tuple[Any, Any, Any]:
    from litgpt.adapter import GPT, Config, mark_only_adapter_as_trainable

    return GPT, Config.from_name(name), mark_only_adapter_as_trainable


def _adapter_v2(name: str) -> tuple[Any, Any, Any]:
    from litgpt.adapter_v2 import GPT, Config, mark_only_adapter_v2_as_trainable

    return GPT, Config.from_name(name), mark_only_adapter_v2_as_trainable


_METHODS = {"lora": _lora, "adapter": _adapter, "adapter_v2": _adapter_v2}


def finetune(
    model: str, method: str, batch: int, length: int, quantize: str = "", devices: int = 1
) -> Mapping[str, int]:
    """A step of two batches; the first alone has the longest text of the data, as published.

    On several GPUs the peak is that of a later batch, whose longest text is not published.

    Returns:
        On several GPUs, the peaks with the median and with the longest length in the second batch.
    """
    fabric = _fabric(quantize, devices)
    make, config, mark_trainable = _METHODS[method](model)
    with fabric.init_module(empty_init=devices > 1):
        network = make(config)
    mark_trainable(network)
    network = fabric.setup_module(network)
    if quantize:
        _multiply_as_of_0_41(network)
    optimizer = fabric.setup_optimizers(_optimizer(network, quantize))
    network.max_seq_length = length
    gc.collect()  # as while the published script loads weights and validates
    # Adapter v2 of litgpt 0.5.13 cannot go back twice before the optimizer's step.
    _step(fabric, network, optimizer, batch, [length, _MEDIAN][: 1 + (method != "adapter_v2")])
    if devices == 1:
        return {}
    least = torch.cuda.max_memory_allocated()
    _step(fabric, network, optimizer, batch, [length, length])
    return {"peak allocated": least, "most peak allocated": torch.cuda.max_memory_allocated()}


def _step(fabric: Any, network: Any, optimizer: Any, batch: int, lengths: Sequence[int]) -> None:
    for index, length in enumerate(lengths):
        tokens = torch.zeros(batch, length, dtype=torch.int64).pin_memory()
        accumulates = index < len(lengths) - 1
        inputs, labels = fabric.to_device((tokens, tokens.clone().pin_memory()))
        with fabric.no_backward_sync(network, enabled=accumulates):
            _backward(fabric, network, inputs, labels)
    optimizer.step()
    optimizer.zero_grad()


def _optimizer(network: nn.Module, quantize: str) -> Any:
    trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if quantize:
        from bitsandbytes.optim import PagedAdamW

        return PagedAdamW(trainable, lr=3e-4, weight_decay=0.01)
    return torch.optim.AdamW(trainable, lr=3e-4, weight_decay=0.01)


def _backward(fabric: Any, network: Any, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    from litgpt.utils import chunked_cross_entropy

    scores = network(inputs, lm_head_chunk_size=128)
    scores[-1] = scores[-1][..., :-1, :]
    fabric.backward(chunked_cross_entropy(scores, labels[..., 1:]) / 128)


def generate(model: str, quantize: str = "") -> None:
    """Fifty tokens after a short prompt, with a cache for as many."""
    from litgpt.generate.base import generate as sample
    from litgpt.model import GPT, Config

    fabric = _fabric(quantize)
    config = Config.from_name(model)
    with fabric.init_module(empty_init=True):
        network = GPT(config)
    network.eval()
    network = fabric.setup_module(network)
    if quantize:
        _multiply_as_of_0_41(network)
    tokens = torch.randint(config.vocab_size, (_PROMPT,)).to(fabric.device)
    with fabric.init_tensor():
        network.max_seq_length = _PROMPT + 50
        network.set_kv_cache(batch_size=1)
    sample(network, tokens, _PROMPT + 50, temperature=0.8, top_k=200)
