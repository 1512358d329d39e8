# gpu: 176MiB
# cause: kept_graphs
# needs: torch_geometric
import torch
from torch_geometric.nn import SAGEConv

conv1, conv2 = SAGEConv(128, 1024).cuda(), SAGEConv(1024, 16).cuda()
params = list(conv1.parameters()) + list(conv2.parameters())
optimizer = torch.optim.SGD(params, lr=0.01)
x = torch.randn(4000, 128, device="cuda")
edge_index = torch.randint(0, 4000, (2, 8000), device="cuda")
small = torch.randint(0, 1000, (2, 2000), device="cuda")
results = {"loss": [], "epoch": []}
for epoch in range(1, 16):
    h = conv1(x, edge_index).relu()
    out = conv2(h, edge_index)
    loss = out.log_softmax(-1)[:, 0].neg().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    part = conv2(conv1(x[:1000], small).relu(), small)
    results["loss"].append(part.log_softmax(-1)[:, 0].neg().mean())
    results["epoch"].append(epoch)
