# gpu: 86MiB
# cause: no_grad
# needs: diffusers
import torch
from diffusers import AutoencoderKL

vae = AutoencoderKL(
    in_channels=3, out_channels=3,
    down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
    up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
    block_out_channels=(32, 64), norm_num_groups=8, latent_channels=4,
).to("cuda")

latents = []
for i in range(3):
    images = torch.randn(2, 3, 96, 96, device="cuda")
    z = vae.encode(images).latent_dist.sample() * 0.18215
    latents.append(z.detach().cpu())
torch.save(torch.cat(latents), "latents.pt")
