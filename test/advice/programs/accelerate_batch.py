# gpu: 146MiB
# cause: batch
# needs: accelerate transformers
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

config = {"lr": 2e-5, "num_epochs": 1, "batch_size": 64}
accelerator = Accelerator()
model = BertForSequenceClassification(BertConfig(vocab_size=2000, hidden_size=128, num_hidden_layers=2,
                                                 num_attention_heads=4, intermediate_size=512))
data = [{"input_ids": torch.randint(0, 2000, (128,)), "labels": torch.tensor(1)} for _ in range(128)]
loader = DataLoader(data, batch_size=config["batch_size"])
optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(config["num_epochs"]):
    for batch in loader:
        outputs = model(**batch)
        accelerator.backward(outputs.loss)
        optimizer.step()
        optimizer.zero_grad()
