# gpu: 222MiB
# cause: first_layers
import torch
from torch import nn

features = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(32, 32, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(4),
    nn.Conv2d(32, 64, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
).cuda()
classifier = nn.Linear(64, 5).cuda()
sgd = torch.optim.SGD([*features.parameters(), *classifier.parameters()], lr=0.01)
for i in range(3):
    x = torch.randn(2, 3, 512, 512, device="cuda")
    y = torch.randint(0, 5, (2,), device="cuda")
    f = features(x)
    loss = nn.functional.cross_entropy(classifier(f), y)
    sgd.zero_grad()
    loss.backward()
    sgd.step()
