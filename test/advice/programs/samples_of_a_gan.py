# gpu: 110MiB
# cause: graph_of_a_variable
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

WIDTH, LATENT = 64, 64


def block(inputs, outputs):
    return nn.Sequential(nn.ConvTranspose2d(inputs, outputs, 4, 2, 1), nn.BatchNorm2d(outputs),
                         nn.ReLU(True))


painter = nn.Sequential(
    nn.ConvTranspose2d(LATENT, WIDTH * 4, 4), nn.ReLU(True), block(WIDTH * 4, WIDTH * 2),
    block(WIDTH * 2, WIDTH), block(WIDTH, WIDTH), nn.ConvTranspose2d(WIDTH, 3, 4, 2, 1), nn.Tanh(),
).cuda()
critic = nn.Sequential(
    nn.Conv2d(3, WIDTH, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(WIDTH, WIDTH, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(WIDTH, 1, 4, 4), nn.Flatten(), nn.LazyLinear(1),
).cuda()
critic(torch.zeros(1, 3, 64, 64, device="cuda"))
of_painter = torch.optim.SGD(painter.parameters(), lr=0.01)
of_critic = torch.optim.SGD(critic.parameters(), lr=0.01)
fixed = torch.randn(64, LATENT, 1, 1, device="cuda")
ones, zeros = torch.ones(32, 1, device="cuda"), torch.zeros(32, 1, device="cuda")

for step in range(6):
    critic.zero_grad()
    photos = torch.rand(32, 3, 64, 64).cuda()
    binary_cross_entropy_with_logits(critic(photos), ones).backward()
    images = painter(torch.randn(32, LATENT, 1, 1, device="cuda"))
    binary_cross_entropy_with_logits(critic(images.detach()), zeros).backward()
    of_critic.step()
    painter.zero_grad()
    binary_cross_entropy_with_logits(critic(images), ones).backward()
    of_painter.step()
    if step % 2 == 0:
        images = painter(fixed)
        print(images.detach().mean().item())
