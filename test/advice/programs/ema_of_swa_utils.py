# gpu: 114MiB
# cause: model_twice
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

net = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
ema_model = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.999))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(256, 1024, device="cuda")
    loss = nn.functional.mse_loss(net(x), x)
    opt.zero_grad()
    loss.backward()
    opt.step()
    ema_model.update_parameters(net)
