# gpu: 340MiB
# cause: double_precision
import numpy as np
import torch
import torch.nn as nn

rng = np.random.default_rng(0)
features = rng.normal(size=(20000, 64))
targets = features.sum(axis=1, keepdims=True)

X = torch.from_numpy(features).cuda()
Y = torch.from_numpy(targets).cuda()

# .double(): else "mat1 and mat2 must have the same dtype"
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)).double().cuda()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(3):
    loss = nn.functional.mse_loss(model(X), Y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(epoch, loss.item())
