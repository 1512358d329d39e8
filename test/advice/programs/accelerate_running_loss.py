# gpu: 166MiB
# cause: running_sum
# needs: accelerate
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

accelerator = Accelerator()
model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_dataloader = DataLoader(torch.randn(30 * 1024, 256), batch_size=1024)
model, optimizer, train_dataloader = accelerator.prepare(model, optimizer, train_dataloader)
model.train()
total_error = 0
for step, batch in enumerate(train_dataloader):
    loss = (model(batch) - batch).pow(2).mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    error = (model(batch[:512]) - batch[:512]).abs().mean()
    total_error += error
print(total_error / (step + 1))
