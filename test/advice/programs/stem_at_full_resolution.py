# gpu: 246MiB
# cause: first_layers
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 48, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(48)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(48, 48, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(48)
        self.pool = nn.AvgPool2d(4)
        self.body = nn.Sequential(nn.Conv2d(48, 96, 3, 2, 1), nn.ReLU(), nn.Conv2d(96, 192, 3, 2, 1), nn.ReLU())
        self.fc = nn.Linear(192, classes)

    def forward(self, x):
        x = self.conv1(x)
        x = self.bn1(x)
        x = self.relu(x)
        x = self.conv2(x)
        x = self.bn2(x)
        x = self.relu(x)
        x = self.pool(x)
        x = self.body(x)
        return self.fc(x.mean(dim=(2, 3)))


net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(2):
    images = torch.randn(4, 3, 256, 256, device="cuda")
    target = torch.randint(0, 10, (4,), device="cuda")
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(images), target)
    loss.backward()
    optimizer.step()
