# gpu: 752MiB
# cause: logits
# masked language modelling, the loss at all places
import torch
from torch import nn
from torch.nn import CrossEntropyLoss

class BertLike(nn.Module):
    def __init__(self, vocab=50000, d=96):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.cls = nn.Linear(d, vocab)
        self.loss_fct = CrossEntropyLoss(ignore_index=-100)

    def training_step(self, ids, labels):
        h = self.encoder(self.tok(ids))
        scores = self.cls(h)
        return self.loss_fct(scores.view(-1, 50000), labels.view(-1))

bert = BertLike().cuda()
opt = torch.optim.SGD(bert.parameters(), lr=0.01)
for i in range(3):
    ids = torch.randint(50000, (12, 128)).cuda()
    opt.zero_grad()
    bert.training_step(ids, ids.clone()).backward()
    opt.step()
