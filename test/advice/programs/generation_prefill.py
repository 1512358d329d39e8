# gpu: 262MiB
# cause: prefill_logits
# needs: transformers
import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(vocab_size=32000, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=4)
model = LlamaForCausalLM(config).cuda().eval()
prompts = torch.randint(0, 32000, (2, 1024), device="cuda")
with torch.inference_mode():
    out = model(prompts, use_cache=True)
    cache, word = out.past_key_values, out.logits[:, -1].argmax(-1, keepdim=True)
    for _ in range(8):
        out = model(word, past_key_values=cache)
        word = out.logits[:, -1].argmax(-1, keepdim=True)
print(word.shape)
