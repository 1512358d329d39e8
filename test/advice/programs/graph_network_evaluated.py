# gpu: 142MiB
# cause: no_grad
# needs: torch_geometric
import torch
import torch.nn.functional as F
from torch_geometric.nn import GCNConv


class DeepGCN(torch.nn.Module):
    def __init__(self, width=512, depth=10):
        super().__init__()
        self.first = GCNConv(64, width)
        self.convs = torch.nn.ModuleList(GCNConv(width, width) for _ in range(depth))
        self.last = torch.nn.Linear(width, 7)

    def forward(self, x, edge_index):
        x = self.first(x, edge_index).relu()
        for conv in self.convs:
            x = F.dropout(conv(x, edge_index).relu(), training=self.training)
        return self.last(x)


model = DeepGCN().cuda()
x = torch.randn(5000, 64).cuda()
edge_index = torch.randint(0, 5000, (2, 4000)).cuda()


def test():
    model.eval()
    out = model(x, edge_index)
    pred = out.argmax(dim=1)
    return int((pred == 0).sum()) / 5000


print(test())
