# gpu: 806MiB
# cause: logits
import torch
from torch import nn

VOCAB = 30522


class Encoder(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.decoder = nn.Linear(dim, VOCAB)

    def forward(self, tokens):
        hidden, _ = self.rnn(self.embed(tokens))
        return self.decoder(hidden)


def train_one_epoch(net, criterion, optim, device):
    for step in range(3):
        tokens = torch.randint(0, VOCAB, (16, 129), device=device)
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        output = net(inputs)
        loss = criterion(output.reshape(-1, VOCAB), targets.reshape(-1))
        optim.zero_grad()
        loss.backward()
        optim.step()
        print(step, float(loss))


if __name__ == "__main__":
    device = torch.device("cuda")
    net = Encoder().to(device)
    train_one_epoch(net, nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=0.1), device)
