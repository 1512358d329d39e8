# gpu: 400MiB
# cause: key_value_cache
# needs: transformers
import torch
from transformers import GPT2Config, GPT2LMHeadModel

config = GPT2Config(vocab_size=1000, n_embd=256, n_layer=12, n_head=4, n_positions=512)
model = GPT2LMHeadModel(config).cuda().eval()
losses = []
with torch.no_grad():
    for _ in range(4):
        ids = torch.randint(0, 1000, (16, 512), device="cuda")
        out = model(ids, labels=ids)
        losses.append(out.loss.item())
print(sum(losses) / len(losses))
