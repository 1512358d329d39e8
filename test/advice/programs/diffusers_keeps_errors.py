# gpu: 190MiB
# cause: kept_graphs
# needs: diffusers
import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DModel

model = UNet2DModel(
    sample_size=32, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(32, 64),
    down_block_types=("DownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "UpBlock2D"), norm_num_groups=8,
).cuda()
noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
errors = []
for step in range(7):
    clean = torch.randn(8, 3, 32, 32, device="cuda")
    noise = torch.randn_like(clean)
    timesteps = torch.randint(0, 1000, (8,), device="cuda")
    noisy = noise_scheduler.add_noise(clean, noise, timesteps)
    noise_pred = model(noisy, timesteps, return_dict=False)[0]
    loss = F.mse_loss(noise_pred, noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    after = model(noisy[:4], timesteps[:4], return_dict=False)[0]
    errors.append(F.l1_loss(after, noise[:4]))
