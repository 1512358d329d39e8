# gpu: 400MiB
# cause: retained_graph
import torch
import torch.nn as nn


class CharModel(nn.Module):
    def __init__(self, n_chars=96, hidden=256):
        super().__init__()
        self.embed = nn.Embedding(n_chars, hidden)
        self.lstm = nn.LSTM(hidden, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, n_chars)

    def forward(self, x, state):
        out, state = self.lstm(self.embed(x), state)
        return self.fc(out), state


def main():
    model = CharModel().cuda()
    criterion = nn.CrossEntropyLoss()
    state = (torch.zeros(1, 32, 256).cuda(), torch.zeros(1, 32, 256).cuda())
    text = torch.randint(0, 96, (32, 2001)).cuda()
    for i in range(0, 2000, 50):
        inputs, targets = text[:, i : i + 50], text[:, i + 1 : i + 51]
        logits, state = model(inputs, state)
        loss = criterion(logits.reshape(-1, 96), targets.reshape(-1))
        model.zero_grad()
        loss.backward(retain_graph=True)
        for p in model.parameters():
            p.data.sub_(0.1 * p.grad)


main()
