# gpu: 92MiB
# cause: none
# needs: transformers accelerate
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

model = BertForSequenceClassification(BertConfig(vocab_size=1000, hidden_size=128, num_hidden_layers=2,
                                                 num_attention_heads=4, intermediate_size=512))
rows = [{"input_ids": [7] * 128, "labels": 1} for _ in range(64)]
args = TrainingArguments("out", per_device_train_batch_size=16, max_steps=3, report_to=[], save_strategy="no",
                         disable_tqdm=True)
Trainer(model=model, args=args, train_dataset=rows).train()
