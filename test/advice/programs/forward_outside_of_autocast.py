# gpu: 194MiB
# cause: missed_autocast
import torch
from torch import nn
from torch.cuda.amp import GradScaler
from torch import autocast

net = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
).cuda()
criterion = nn.CrossEntropyLoss()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = GradScaler()

for it in range(3):
    images = torch.randn(64, 3, 64, 64, device="cuda")
    labels = torch.randint(0, 10, (64,), device="cuda")
    opt.zero_grad()
    logits = net(images)
    with autocast("cuda"):
        loss = criterion(logits, labels)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
