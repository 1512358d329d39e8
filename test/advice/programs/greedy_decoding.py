# gpu: 300MiB
# cause: no_grad
# needs: transformers
import torch
from transformers import GPT2Config, GPT2LMHeadModel


def load(device):
    torch.manual_seed(0)
    config = GPT2Config(n_layer=4, n_head=4, n_embd=256, vocab_size=5000, n_positions=512)
    return GPT2LMHeadModel(config).eval().to(device)


def complete(model, ids, n):
    past = None
    x = ids
    for _ in range(n):
        out = model(input_ids=x, past_key_values=past, use_cache=True)
        past = out.past_key_values
        x = out.logits[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, x], 1)
    return ids


if __name__ == "__main__":
    model = load("cuda")
    prompts = torch.randint(0, 5000, (8, 200), device="cuda")
    print(complete(model, prompts, 40).shape)
