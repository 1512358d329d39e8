# gpu: 158MiB
# cause: batch
import torch
from torch import nn

BATCH_SIZE = 32
SEQ_LEN = 128
DIM = 256

encoder = nn.TransformerEncoder(
    nn.TransformerEncoderLayer(DIM, 8, 4 * DIM, batch_first=True), num_layers=2
).cuda()
embed = nn.Embedding(1000, DIM).cuda()
head = nn.Linear(DIM, 2).cuda()
params = [*encoder.parameters(), *embed.parameters(), *head.parameters()]
optimizer = torch.optim.SGD(params, lr=1e-3)
for epoch in range(2):
    tokens = torch.randint(0, 1000, (BATCH_SIZE, SEQ_LEN), device="cuda")
    labels = torch.randint(0, 2, (BATCH_SIZE,), device="cuda")
    loss = nn.functional.cross_entropy(head(encoder(embed(tokens)).mean(1)), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
