# gpu: 666MiB
# cause: logits
# needs: transformers accelerate
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

config = LlamaConfig(vocab_size=32000, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=4)
model = LlamaForCausalLM(config)
train_data = [{"input_ids": [3] * 256, "labels": [3] * 256} for _ in range(24)]
training_args = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=8,
    max_steps=2,
    report_to="none",
    save_strategy="no",
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=training_args, train_dataset=train_data)
trainer.train()
