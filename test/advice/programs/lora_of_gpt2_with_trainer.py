# gpu: 120MiB
# cause: full_precision_base
# needs: transformers peft accelerate
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

model = GPT2LMHeadModel(GPT2Config(n_layer=3, n_embd=768, n_head=12, vocab_size=5000))
peft_config = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["c_attn"], fan_in_fan_out=True)
model = get_peft_model(model, peft_config)
rows = [{"input_ids": [1] * 64, "labels": [1] * 64} for _ in range(8)]
args = TrainingArguments("out", per_device_train_batch_size=2, max_steps=2, report_to=[], save_strategy="no",
                         disable_tqdm=True)
trainer = Trainer(model=model, args=args, train_dataset=rows)
trainer.train()
