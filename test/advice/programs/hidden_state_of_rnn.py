# gpu: 394MiB
# cause: retained_graph
import torch
from torch import nn

rnn = nn.GRU(128, 256, batch_first=True).cuda()
head = nn.Linear(256, 128).cuda()
optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.1)
hidden = torch.zeros(1, 64, 256, device="cuda")
for chunk in range(30):
    x = torch.randn(64, 32, 128, device="cuda")
    out, hidden = rnn(x, hidden)
    loss = (head(out) - x).pow(2).mean()
    optimizer.zero_grad()
    # without retain_graph: "Trying to backward through the graph a second time"
    loss.backward(retain_graph=True)
