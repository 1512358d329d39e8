# gpu: 316MiB
# cause: gradients_kept
import torch
import torch.nn as nn

layers = []
for _ in range(6):
    layers += [nn.Linear(2048, 2048), nn.ReLU()]
net = nn.Sequential(*layers).to("cuda")
opt = torch.optim.SGD(net.parameters(), lr=1e-2)
for i in range(3):
    opt.zero_grad(set_to_none=False)
    data = torch.randn(16, 2048, device="cuda")
    loss = net(data).abs().mean()
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=False)
    with torch.no_grad():  # a sample from time to time
        sample = net(torch.randn(6000, 2048, device="cuda"))
        print(i, sample.std().item())
