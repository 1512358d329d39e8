# gpu: 426MiB
# cause: first_layers
import torch
import torch.nn as nn
import torch.nn.functional as F


class DoubleConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
            nn.Conv2d(o, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
        )

    def forward(self, x):
        return self.net(x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inc = DoubleConv(1, 32)
        self.down1 = DoubleConv(32, 64)
        self.down2 = DoubleConv(64, 128)
        self.up1 = DoubleConv(128 + 64, 64)
        self.up2 = DoubleConv(64 + 32, 32)
        self.outc = nn.Conv2d(32, 1, 1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(F.max_pool2d(x1, 2))
        x3 = self.down2(F.max_pool2d(x2, 2))
        y = self.up1(torch.cat([F.interpolate(x3, scale_factor=2), x2], dim=1))
        y = self.up2(torch.cat([F.interpolate(y, scale_factor=2), x1], dim=1))
        return self.outc(y)


def train():
    device = "cuda"
    unet = UNet().to(device)
    opt = torch.optim.Adam(unet.parameters(), lr=1e-3)
    for _ in range(2):
        img = torch.randn(2, 1, 320, 320).to(device)
        mask = torch.rand(2, 1, 320, 320).to(device)
        pred = unet(img)
        loss = F.mse_loss(pred, mask)
        opt.zero_grad()
        loss.backward()
        opt.step()


train()
