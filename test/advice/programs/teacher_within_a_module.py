# gpu: 220MiB
# cause: no_grad
import torch
import torch.nn as nn
import torch.nn.functional as F


def mlp(width, depth):
    layers = [nn.Linear(128, width), nn.GELU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, 100))


class Distiller(nn.Module):
    def __init__(self, teacher, student, T=4.0, alpha=0.7):
        super().__init__()
        self.teacher, self.student, self.T, self.alpha = teacher, student, T, alpha

    def forward(self, x, y):
        t = self.teacher(x)
        s = self.student(x)
        kd = (
            F.kl_div(
                F.log_softmax(s / self.T, -1),
                F.softmax(t.detach() / self.T, -1),
                reduction="batchmean",
            )
            * self.T**2
        )
        return self.alpha * kd + (1 - self.alpha) * F.cross_entropy(s, y)


def main(device="cuda"):
    teacher, student = mlp(1024, 6), mlp(128, 2)
    module = Distiller(teacher, student).to(device)
    opt = torch.optim.AdamW(student.parameters(), 1e-3)
    for step in range(20):
        x = torch.randn(4096, 128, device=device)
        y = torch.randint(100, (4096,), device=device)
        loss = module(x, y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        print(step, round(loss.item(), 4))


main()
