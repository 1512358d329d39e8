# gpu: 186MiB
# cause: gradients_kept
import torch
from torch import nn

device = "cuda"


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.EmbeddingBag(40000, 256)
        self.out = nn.Sequential(nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 20))

    def forward(self, ids):
        return self.out(self.embed(ids))


@torch.inference_mode()
def test(clf):
    clf.eval()
    correct = 0
    ids = torch.randint(0, 40000, (3000, 50), device=device)
    labels = torch.randint(0, 20, (3000,), device=device)
    correct += (clf(ids).argmax(1) == labels).sum().item()
    return correct / 3000


clf = Classifier().to(device)
optimizer = torch.optim.SGD(clf.parameters(), lr=0.1)
for step in range(3):
    ids = torch.randint(0, 40000, (64, 50), device=device)
    labels = torch.randint(0, 20, (64,), device=device)
    optimizer.zero_grad()
    nn.functional.cross_entropy(clf(ids), labels).backward()
    optimizer.step()
print("accuracy", test(clf))
