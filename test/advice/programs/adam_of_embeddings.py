# gpu: 136MiB
# cause: optimizer_temporaries
import torch
import torch.nn as nn
import torch.optim as optim

users = nn.Embedding(60000, 64).cuda()
items = nn.Embedding(60000, 64).cuda()
opt = optim.Adam(list(users.parameters()) + list(items.parameters()), lr=0.01, weight_decay=1e-5)

for batch in range(3):
    u = torch.randint(0, 60000, (4096,)).cuda()
    i = torch.randint(0, 60000, (4096,)).cuda()
    score = (users(u) * items(i)).sum(1)
    loss = nn.functional.binary_cross_entropy_with_logits(score, torch.ones_like(score))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"batch {batch} loss {loss.item():.3f}")
