"""One step of diffusion models of diffusers: eager, compiled, and with weights kept in 8 bits."""

from __future__ import annotations

from typing import Any

import torch

_CALLS = 6  # five of them warm up


@torch.no_grad()
def forward(model: str, compiled: bool = False, eight_bits: bool = False) -> None:
    """Calls with the sizes of an image of 1024 x 1024 pixels, or of a video."""
    make, inputs = {"flux": (_flux, _flux_inputs), "ltx": (_ltx, _ltx_inputs)}.get(
        model, (_sdxl, _sdxl_inputs)
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        network = make()
    network.eval()
    if eight_bits:
        network.enable_layerwise_casting(
            storage_dtype=torch.float8_e4m3fn, compute_dtype=torch.bfloat16
        )
    if compiled:
        network.compile(fullgraph=True)
    with torch.device("cuda"):
        arguments = inputs()
    for _ in range(_CALLS):
        network(**arguments)


def _flux() -> Any:
    from diffusers import FluxTransformer2DModel

    return FluxTransformer2DModel(
        in_channels=64,
        num_layers=19,
        num_single_layers=38,
        attention_head_dim=128,
        num_attention_heads=24,
        joint_attention_dim=4096,
        pooled_projection_dim=768,
        guidance_embeds=True,
    )


def _flux_inputs() -> dict[str, Any]:
    return {
        "hidden_states": torch.randn(1, 4096, 64),
        "encoder_hidden_states": torch.randn(1, 512, 4096),
        "img_ids": torch.ones(512, 3),
        "txt_ids": torch.ones(4096, 3),
        "pooled_projections": torch.randn(1, 768),
        "timestep": torch.tensor([1.0]),
        "guidance": torch.tensor([1.0]),
    }


def _ltx() -> Any:
    from diffusers import LTXVideoTransformer3DModel

    return LTXVideoTransformer3DModel(
        in_channels=128,
        out_channels=128,
        num_attention_heads=32,
        attention_head_dim=128,
        cross_attention_dim=4096,
        num_layers=48,
        caption_channels=4096,
    )


def _ltx_inputs() -> dict[str, Any]:
    return {
        "hidden_states": torch.randn(1, 7392, 128),
        "encoder_hidden_states": torch.randn(1, 256, 4096),
        "encoder_attention_mask": torch.ones(1, 256),
        "timestep": torch.tensor([1.0]),
        "video_coords": torch.randn(1, 3, 7392),
    }


def _sdxl() -> Any:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=128,
        block_out_channels=(320, 640, 1280),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        layers_per_block=2,
        transformer_layers_per_block=(1, 2, 10),
        attention_head_dim=(5, 10, 20),
        cross_attention_dim=2048,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
    )


def _sdxl_inputs() -> dict[str, Any]:
    return {
        "sample": torch.randn(1, 4, 128, 128),
        "encoder_hidden_states": torch.randn(1, 77, 2048),
        "timestep": torch.tensor([1.0]),
        "added_cond_kwargs": {"text_embeds": torch.randn(1, 1280), "time_ids": torch.ones(1, 6)},
    }
