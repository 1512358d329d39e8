# gpu: 80MiB
# cause: kept_graphs
# needs: transformers accelerate
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class MyTrainer(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.history = {"margin": []}

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        outputs = model(**inputs)
        # the scores of the first two, with other dropout
        again = model(**{name: value[:2] for name, value in inputs.items()})
        self.history["margin"].append(again.logits.std())
        return (outputs.loss, outputs) if return_outputs else outputs.loss


model = BertForSequenceClassification(BertConfig(vocab_size=1000, hidden_size=128, num_hidden_layers=2,
                                                 num_attention_heads=4, intermediate_size=512))
dataset = [{"input_ids": [7] * 128, "labels": 1} for _ in range(96)]
args = TrainingArguments("out", per_device_train_batch_size=6, max_steps=14, report_to=[], save_strategy="no",
                         disable_tqdm=True)
MyTrainer(model=model, args=args, train_dataset=dataset).train()
