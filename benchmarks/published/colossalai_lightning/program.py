"""Training of GPT-2 with random tokens by Lightning's Trainer: DDP, and DeepSpeed's ZeRO."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

_SIZES = {
    "gpt2_xl": {"n_embd": 1600, "n_layer": 48, "n_head": 25},
    "gpt2_12B": {"n_embd": 4096, "n_layer": 60, "n_head": 16},
    "gpt2_18B": {"n_embd": 4096, "n_layer": 90, "n_head": 16},
}
_VOCABULARY, _LENGTH = 50_257, 1024


class _Batches:
    """Batches that are made on the GPU."""

    def __init__(self, steps: int, batch: int) -> None:
        self._steps, self._batch = steps, batch

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(self._steps):
            tokens = torch.randint(0, _VOCABULARY, (self._batch, _LENGTH), device="cuda")
            yield tokens, torch.ones_like(tokens)


def _language_model(size: str) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_positions": _LENGTH, "vocab_size": _VOCABULARY, **_SIZES[size]}
    model: Any = GPT2LMHeadModel(GPT2Config(attn_implementation="eager", **sizes))
    # As of transformers 4.21.
    model.gradient_checkpointing_enable({"use_reentrant": True})
    return model  # type: ignore[no-any-return]


def train(
    size: str,
    strategy: str,
    batch: int,
    epochs: int,
    steps: int,
    devices: int,
    offload: bool = False,
) -> None:
    """Some epochs of the Trainer."""
    import lightning
    from lightning.pytorch.plugins.precision import MixedPrecision
    from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy

    from benchmarks.published.deepspeed_kernels import replace_kernels

    class _Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.loss = nn.CrossEntropyLoss()

        def configure_model(self) -> None:
            self.model = _language_model(size)

        def configure_optimizers(self) -> Any:
            if strategy == "ddp":
                # The default of PyTorch 1.12.
                return torch.optim.Adam(self.model.parameters(), lr=1e-3, foreach=False)
            from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam

            make = DeepSpeedCPUAdam if offload else FusedAdam
            return make(self.model.parameters(), lr=1e-3)

        def optimizer_zero_grad(self, *args: Any) -> None:
            # PyTorch 1.12 zeroes gradients in place; DeepSpeed does it on its own.
            args[-1].zero_grad(set_to_none=strategy != "ddp")

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            tokens, mask = batch
            scores = self.model(input_ids=tokens, attention_mask=mask, use_cache=False)[0]
            shifted = scores[..., :-1, :].contiguous()
            labels = tokens[..., 1:].contiguous()
            loss: torch.Tensor = self.loss(shifted.view(-1, shifted.size(-1)), labels.view(-1))
            return loss

    class _Autocast(MixedPrecision):  # type: ignore[misc]
        def autocast_context_manager(self) -> torch.autocast:
            # Lightning 1.7 kept the casts of weights.
            return torch.autocast("cuda", dtype=torch.float16)

    settings: dict[str, Any]
    if strategy == "ddp":
        settings = {"strategy": DDPStrategy(static_graph=True)}
        settings["plugins"] = _Autocast("16-mixed", "cuda")
    else:
        replace_kernels()
        settings = {"precision": "16-mixed"}
        settings["strategy"] = DeepSpeedStrategy(
            stage=3,
            remote_device="cpu",  # the default of Lightning 1.7
            offload_parameters=offload,
            offload_optimizer=offload,
            initial_scale_power=5,
        )
    trainer = lightning.Trainer(
        accelerator="cuda",
        devices=devices,
        **settings,
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(_Module(), _Batches(steps, batch))
