# gpu: 222MiB
# cause: none
# needs: torch_geometric
import torch
from torch_geometric.nn import GCNConv

conv1, conv2 = GCNConv(64, 512).cuda(), GCNConv(512, 7).cuda()
opt = torch.optim.SGD([*conv1.parameters(), *conv2.parameters()], lr=0.01)
x, y = torch.randn(8000, 64, device="cuda"), torch.randint(0, 7, (8000,), device="cuda")
edges = torch.randint(0, 8000, (2, 30000), device="cuda")
for epoch in range(3):
    out = conv2(conv1(x, edges).relu(), edges)
    loss = torch.nn.functional.cross_entropy(out, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(epoch, loss.item())
