# gpu: 128MiB
# cause: none
import torch
from torch import nn

rnn = nn.LSTM(128, 256, batch_first=True).cuda()
out_layer = nn.Linear(256, 128).cuda()
opt = torch.optim.SGD([*rnn.parameters(), *out_layer.parameters()], lr=0.1)
state = None
for i in range(4):
    x = torch.randn(64, 128, 128, device="cuda")
    y, state = rnn(x, state)
    state = tuple(s.detach() for s in state)
    loss = (out_layer(y) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
