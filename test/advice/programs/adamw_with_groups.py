# gpu: 190MiB
# cause: optimizer_temporaries
from torch import nn
from torch.optim import AdamW
import torch


def configure(net):
    decay = [p for p in net.parameters() if p.dim() >= 2]
    rest = [p for p in net.parameters() if p.dim() < 2]
    return AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
        lr=3e-4,
        betas=(0.9, 0.95),
    )


def main():
    net = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 3).cuda()
    opt = configure(net)
    for i in range(3):
        out = net(torch.randn(2, 16, 512, device="cuda"))
        out.mean().backward()
        opt.step()
        opt.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main()
