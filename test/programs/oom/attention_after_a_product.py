# gpu: 2GiB
# cause: attention_matrices
import torch


def attention(q, k, v):
    # fixed: q, k, v = (x.unsqueeze(1) for x in (q, k, v))
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    # fixed: result = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    weights = scores.softmax(dim=-1)
    # fixed: return result.squeeze(1)
    return weights @ v


q, k, v = (torch.randn(8, 4096, 64, device="cuda", requires_grad=True) for _ in range(3))
torch.nn.functional.linear(
    q[0], k[0]
).sum().backward()  # takes the workspaces of cuBLAS, if the process keeps them
attention(q, k, v).sum().backward()
