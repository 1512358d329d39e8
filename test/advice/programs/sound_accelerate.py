# gpu: 128MiB
# cause: none
# needs: accelerate
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

accelerator = Accelerator()
model = nn.Sequential(nn.Linear(128, 1024), nn.Tanh(), nn.Linear(1024, 128))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(torch.randn(16384, 128), batch_size=4096)
model, opt, loader = accelerator.prepare(model, opt, loader)
losses = []
for batch in loader:
    loss = nn.functional.mse_loss(model(batch), batch)
    accelerator.backward(loss)
    opt.step()
    opt.zero_grad()
    losses.append(loss.item())
