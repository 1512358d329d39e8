# gpu: 512MiB
# cause: attention_kernel
import torch
from torch.nn import functional

q, k, v = (torch.randn(4, 4096, 64, device="cuda", requires_grad=True) for _ in range(3))


def attention(q, k, v):
    # fixed: q, k, v = (x.unsqueeze(1) for x in (q, k, v))
    q, k, v = (x for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v)


attention(q, k, v).sum().backward()
