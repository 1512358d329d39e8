# gpu: 128MiB
# cause: kept_graphs
import functools
import torch
from torch import nn
def log(store, name, value):
    store[name].append(value)
def run():
    store = {"loss": [], "reg": []}
    on_step = functools.partial(log, store)
    net = nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 256)).cuda()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for i in range(40):
        x = torch.randn(1024, 256, device="cuda")
        loss = (net(x) - x).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        on_step("loss", loss.item())
        on_step("reg", net(x).std())
    print(len(store["reg"]))
run()
