"""Fine-tuning of GPT-2 on one GPU: without DeepSpeed, and with stages of its ZeRO."""

from __future__ import annotations

from typing import Any

import torch

_SIZES = {
    "gpt2-medium": {"n_embd": 1024, "n_layer": 24, "n_head": 16},
    "gpt2-large": {"n_embd": 1280, "n_layer": 36, "n_head": 20},
}
_LENGTH, _BATCH, _STEPS = 512, 4, 3

_BUCKETS = {"reduce_bucket_size": 5e8, "allgather_bucket_size": 5e8}
_OVERLAPPED = {"contiguous_gradients": True, "overlap_comm": True, "reduce_scatter": True}
_STAGES: dict[str, dict[str, Any]] = {
    "zero1": {"stage": 1, **_BUCKETS},
    "zero2": {"stage": 2, **_OVERLAPPED, **_BUCKETS},
    "zero3": {
        "stage": 3,
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_prefetch_bucket_size": 5e8,
        "stage3_param_persistence_threshold": 1e6,
        "reduce_bucket_size": 5e8,
        **_OVERLAPPED,
        "sub_group_size": 1e9,
        "offload_optimizer": {"device": "none"},
        "offload_param": {"device": "none"},
    },
    "offload": {
        "stage": 2,
        **_OVERLAPPED,
        **_BUCKETS,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
    },
}


class _Texts(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Texts of one token that are padded, as most lines of WikiText-2 are shorter than 512."""

    def __len__(self) -> int:
        return _STEPS * _BATCH

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        mask = torch.zeros(_LENGTH, dtype=torch.int64)
        mask[0] = 1
        return {"input_ids": torch.full((_LENGTH,), 50_256), "attention_mask": mask}


def _language_model(size: str) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(**_SIZES[size]))


def train(size: str, strategy: str) -> None:
    """Steps of an epoch, whose peak counts."""
    model = _language_model(size)
    if strategy == "dp":
        _without_deepspeed(model)
    else:
        _with_deepspeed(model, strategy)


def _without_deepspeed(model: Any) -> None:
    model = model.to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01)
    torch.cuda.reset_peak_memory_stats()
    model.train()
    # As in the published loop, the scores and the cache of keys live until the next ones are there.
    for batch in torch.utils.data.DataLoader(_Texts(), batch_size=_BATCH):
        outputs = _outputs(model, batch)
        loss = outputs.loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()


def _with_deepspeed(model: Any, strategy: str) -> None:
    import deepspeed

    from benchmarks.published.deepspeed_kernels import replace_kernels

    replace_kernels()
    betas = {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}
    config = {
        "train_batch_size": _BATCH,
        "train_micro_batch_size_per_gpu": _BATCH,
        "gradient_accumulation_steps": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, **betas}},
        "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16, "hysteresis": 2},
        "zero_optimization": _STAGES[strategy],
    }
    engine, _, batches, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), training_data=_Texts(), config=config
    )
    torch.cuda.reset_peak_memory_stats()
    engine.train()
    for batch in batches:
        outputs = _outputs(engine, batch)
        loss = outputs.loss
        engine.backward(loss)
        engine.step()


def _outputs(model: Any, batch: dict[str, torch.Tensor]) -> Any:
    tokens, mask = (batch[name].to("cuda") for name in ("input_ids", "attention_mask"))
    return model(input_ids=tokens, attention_mask=mask, labels=tokens)
