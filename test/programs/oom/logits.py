# gpu: 640MiB
# cause: logits
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

head = nn.Linear(256, 32000, bias=False, device="cuda")
hidden = torch.randn(2048, 256, device="cuda", requires_grad=True)
labels = torch.randint(0, 32000, (2048,), device="cuda")


def whole_loss(hidden, labels):
    return functional.cross_entropy(head(hidden), labels, reduction="sum")


def chunked_loss(hidden, labels):
    parts = zip(hidden.chunk(8), labels.chunk(8), strict=True)
    return sum(checkpoint(whole_loss, *part, use_reentrant=False) for part in parts)


# fixed: chunked_loss(hidden, labels).backward()
whole_loss(hidden, labels).backward()
