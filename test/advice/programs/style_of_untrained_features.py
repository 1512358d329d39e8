# gpu: 370MiB
# cause: untrained_parameters
import torch
from torch import nn


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList()
        widths = [3, 32, 32, 64, 64]
        for i in range(4):
            self.layers.append(nn.Sequential(nn.Conv2d(widths[i], widths[i + 1], 3, padding=1), nn.ReLU()))

    def forward(self, x):
        out = []
        for i, layer in enumerate(self.layers):
            x = layer(x)
            out.append(x)
            if i == 1:
                x = nn.functional.avg_pool2d(x, 2)
        return out


device = torch.device("cuda")
vgg = Features().to(device).eval()
content = torch.rand(1, 3, 384, 384).to(device)
style = torch.rand(1, 3, 384, 384).to(device)
target = content.clone().requires_grad_(True)
optimizer = torch.optim.Adam([target], lr=0.003, betas=(0.5, 0.999))

for step in range(3):
    target_features = vgg(target)
    content_features = vgg(content)
    style_features = vgg(style)
    style_loss = content_loss = 0
    for f1, f2, f3 in zip(target_features, content_features, style_features):
        content_loss = content_loss + torch.mean((f1 - f2) ** 2)
        _, c, h, w = f1.size()
        f1 = f1.view(c, h * w)
        f3 = f3.view(c, h * w)
        style_loss = style_loss + torch.mean((f1 @ f1.t() - f3 @ f3.t()) ** 2) / (c * h * w)
    loss = content_loss + 100 * style_loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
