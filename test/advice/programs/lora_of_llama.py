# gpu: 116MiB
# cause: full_precision_base
# needs: transformers peft
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(vocab_size=4000, hidden_size=768, intermediate_size=2048, num_hidden_layers=3,
                     num_attention_heads=12, num_key_value_heads=12)
base = LlamaForCausalLM(config)
model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"]))
model.to("cuda")
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=2e-4)
for step in range(2):
    ids = torch.randint(0, 4000, (2, 64), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
