# gpu: 126MiB
# cause: no_grad
# needs: transformers
import torch
from transformers import BertConfig, BertModel

model = BertModel(BertConfig(vocab_size=3000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
                             intermediate_size=1024)).cuda()
model.eval()


def embed(texts):
    input_ids = torch.randint(0, 3000, (len(texts), 128)).cuda()
    out = model(input_ids=input_ids, attention_mask=torch.ones_like(input_ids))
    return out.last_hidden_state[:, 0].cpu().detach().numpy()


vectors = [embed(["some text"] * 16) for _ in range(3)]
print(len(vectors), vectors[0].shape)
