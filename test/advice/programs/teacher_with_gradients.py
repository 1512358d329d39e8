# gpu: 200MiB
# cause: untrained_model
import torch
from torch import nn

teacher = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(12)]).cuda()
student = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 512)).cuda()
teacher.eval()
optimizer = torch.optim.AdamW(student.parameters())
for _ in range(5):
    x = torch.randn(4096, 512, device="cuda")
    target = teacher(x)
    loss = nn.functional.mse_loss(student(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
