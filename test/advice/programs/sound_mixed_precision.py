# gpu: 402MiB
# cause: none
import torch
from torch import nn

model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(1024, 1024), nn.ReLU())]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
scaler = torch.amp.GradScaler("cuda")
for step in range(3):
    x = torch.randn(8192, 1024, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = (model(x) - x).square().mean()
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
