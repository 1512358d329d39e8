"""An LSTM that predicts the next word: tied weights, dropout, truncated backpropagation.

It runs on a GPU as it is. Without one:

    pytorch-memlab run examples/lstm_language_model.py
    pytorch-memlab run --dry-run -f train examples/lstm_language_model.py --width 1500 --batch 64
"""

import argparse

import torch
from torch import nn
from torch.nn import functional

WORDS = 1000
State = tuple[torch.Tensor, torch.Tensor]


class LanguageModel(nn.Module):
    """Embedding, LSTM, and a decoder whose weight is the embedding's.

    Args:
        width: of the embedding and of the hidden state.
        layers: of the LSTM.
    """

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.2)
        self.embedding = nn.Embedding(WORDS, width)
        self.lstm = nn.LSTM(width, width, layers, dropout=0.2)
        self.decoder = nn.Linear(width, WORDS)
        self.decoder.weight = self.embedding.weight

    def forward(self, words: torch.Tensor, state: State | None) -> tuple[torch.Tensor, State]:
        """Logits of every next word, and the state after the last."""
        features, state = self.lstm(self.dropout(self.embedding(words)), state)
        return self.decoder(self.dropout(features)), state


def train(width: int = 128, layers: int = 2, batch: int = 8, length: int = 16) -> None:
    """Train on a text of random words, some at a time; the state goes on, its gradient does not.

    Args:
        width: of the model.
        layers: of the LSTM.
        batch: texts that are read side by side.
        length: words through which a gradient goes back.
    """
    model = LanguageModel(width, layers).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    text = torch.randint(0, WORDS, (3 * length + 1, batch), device="cuda")
    state = None
    total = 0.0
    for start in range(0, len(text) - 1, length):
        words = text[start : start + length]
        following = text[start + 1 : start + 1 + length]
        if state is not None:
            state = (state[0].detach(), state[1].detach())
        optimizer.zero_grad()
        logits, state = model(words, state)
        loss = functional.cross_entropy(logits.flatten(0, 1), following.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        total += loss.item()
    print(f"loss {total / 3:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train an LSTM on random words.")
    parser.add_argument("--width", type=int, default=128, help="of embedding and hidden state")
    parser.add_argument("--layers", type=int, default=2, help="of the LSTM")
    parser.add_argument("--batch", type=int, default=8, help="texts read side by side")
    parser.add_argument("--length", type=int, default=16, help="words that a gradient goes back")
    train(**vars(parser.parse_args()))
