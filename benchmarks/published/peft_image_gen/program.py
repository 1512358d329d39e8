"""Fine-tuning of FLUX.2 klein 4B with one of PEFT's methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_STEPS = 3
_PROMPTS = 14  # of 20, without those that validate and test
_CHANNELS, _SIDE = 128, 32  # of packed latents of 512 x 512 pixels


def finetune(method: str = "", settings: Mapping[str, Any] | None = None) -> dict[str, int]:
    """Steps after what they need was computed; without a method, all parameters are trained."""
    torch.nn.Linear(1, 1).cuda()
    begun = torch.cuda.max_memory_reserved()
    transformer = _transformer(method, settings or {})
    encoder = _image_encoder()
    optimizer = torch.optim.AdamW(transformer.parameters(), lr=1e-4, weight_decay=1e-4)
    embeds, ids, latents = _caches()
    transformer.cuda()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(_STEPS):
        _step(transformer, optimizer, embeds, ids, latents)
    result = {
        "peak reserved in training": torch.cuda.max_memory_reserved() - begun,
        "least peak reserved in training": torch.cuda.max_memory_allocated() - begun,
        "allocated after a step": torch.cuda.memory_allocated() - begun,
    }
    del encoder
    return result


def _transformer(method: str, settings: Mapping[str, Any]) -> Any:
    from diffusers import Flux2Transformer2DModel
    from peft import PeftConfig, get_peft_model

    model: Any = Flux2Transformer2DModel(
        patch_size=1,
        in_channels=_CHANNELS,
        num_layers=5,
        num_single_layers=20,
        attention_head_dim=128,
        num_attention_heads=24,
        joint_attention_dim=7680,
        timestep_guidance_channels=256,
        mlp_ratio=3.0,
        axes_dims_rope=(32, 32, 32, 32),
        rope_theta=2000,
        eps=1e-6,
        guidance_embeds=False,
    )
    model.to(torch.bfloat16).enable_gradient_checkpointing()
    model.cuda()
    if method:
        model = get_peft_model(model, PeftConfig.from_peft_type(peft_type=method, **settings))
    model.cpu()
    torch.cuda.empty_cache()
    return model.train()


def _image_encoder() -> Any:
    """DINOv2, which is on the GPU from the beginning, for the validation."""
    from transformers import Dinov2Config, Dinov2Model

    return Dinov2Model(Dinov2Config(image_size=518, patch_size=14)).cuda().eval()


def _caches() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Embeddings and identifiers of the prompts, and latents of the images."""
    embeds = torch.randn(_PROMPTS, 512, 7680, device="cuda", dtype=torch.bfloat16)
    ids = torch.zeros(_PROMPTS, 512, 4, device="cuda", dtype=torch.int64)
    latents = torch.randn(_PROMPTS, _CHANNELS, _SIDE, _SIDE, device="cuda", dtype=torch.bfloat16)
    return embeds, ids, latents


def _step(
    model: Any,
    optimizer: torch.optim.Optimizer,
    embeds: torch.Tensor,
    ids: torch.Tensor,
    latents: torch.Tensor,
) -> None:
    from diffusers import Flux2KleinPipeline as Pipeline

    chosen = torch.randint(_PROMPTS, (2,)).cuda()
    clean = latents.index_select(0, chosen)
    prompts, prompt_ids = embeds.index_select(0, chosen), ids.index_select(0, chosen)
    image_ids = Pipeline._prepare_latent_ids(clean).cuda()
    noise = torch.randn_like(clean)
    times = torch.rand(2).cuda()
    share = times.to(clean.dtype)[:, None, None, None]
    packed = Pipeline._pack_latents((1.0 - share) * clean + share * noise)
    optimizer.zero_grad(set_to_none=True)
    predicted = model(
        hidden_states=packed,
        timestep=times,
        guidance=None,
        encoder_hidden_states=prompts,
        txt_ids=prompt_ids,
        img_ids=image_ids,
        return_dict=False,
    )[0][:, : packed.size(1)]
    predicted = Pipeline._unpack_latents_with_ids(predicted, image_ids)
    target = noise - clean
    weighted = torch.ones_like(share).float() * (predicted.float() - target.float()) ** 2
    weighted.reshape(2, -1).mean(1).mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
