# gpu: 500MiB
# cause: evaluation_predictions
# needs: transformers accelerate
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


def accuracy(evaluated):
    best = evaluated.predictions.argmax(-1)[:, :-1]
    return {"accuracy": float((best == evaluated.label_ids[:, 1:]).mean())}


config = LlamaConfig(vocab_size=8000, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=4)
model = LlamaForCausalLM(config)
train_data = [{"input_ids": [3] * 128, "labels": [3] * 128} for _ in range(8)]
test_data = [{"input_ids": [3] * 256, "labels": [3] * 256} for _ in range(96)]
training_args = TrainingArguments("out", per_device_train_batch_size=4, per_device_eval_batch_size=4, max_steps=2,
                                  report_to="none", save_strategy="no", disable_tqdm=True)
trainer = Trainer(model=model, args=training_args, train_dataset=train_data, eval_dataset=test_data,
                  compute_metrics=accuracy)
trainer.train()
print(trainer.evaluate())
