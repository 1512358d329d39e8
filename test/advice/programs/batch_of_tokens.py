# gpu: 300MiB
# cause: batch
import torch
from torch import nn

MAX_TOKENS = 16384
WORDS, WIDTH = 2000, 128


def batches(lengths, max_tokens):
    batch = []
    for length in lengths:
        if (len(batch) + 1) * length > max_tokens:
            yield torch.randint(0, WORDS, (len(batch), length), device="cuda")
            batch = []
        batch.append(length)


layer = nn.TransformerEncoderLayer(WIDTH, 4, 512, batch_first=True, norm_first=True)
model = nn.Sequential(nn.Embedding(WORDS, WIDTH), layer, nn.Linear(WIDTH, WORDS)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for ids in batches([128] * 1024, MAX_TOKENS):
    logits = model(ids)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
