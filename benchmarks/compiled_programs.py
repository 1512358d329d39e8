"""Small programs that compile models of all kinds, for a simulated GPU: each trains two steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH: Final = 64
TOKENS: Final = 32
WORDS: Final = 128


class Attention(nn.Module):
    """Attention of queries over keys and values.

    Args:
        heads: of queries.
        groups: of keys and values.
        is_causal: whether a token sees those before it only.
        is_fused: whether ``scaled_dot_product_attention`` computes it.
    """

    def __init__(
        self, heads: int = 4, groups: int = 4, *, is_causal: bool = False, is_fused: bool = True
    ) -> None:
        super().__init__()
        self.heads, self.groups = heads, groups
        self.is_causal, self.is_fused = is_causal, is_fused
        self.query = nn.Linear(WIDTH, WIDTH)
        self.keys = nn.Linear(WIDTH, 2 * WIDTH * groups // heads)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(
        self, x: Tensor, context: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """The outputs of all heads, together."""
        batch, length, _ = x.shape
        source = x if context is None else context
        query = self.query(x).view(batch, length, self.heads, -1).transpose(1, 2)
        pair = self.keys(source).view(batch, source.shape[1], 2, self.groups, -1)
        key, value = pair.permute(2, 0, 3, 1, 4)
        query, key = _rotated(query), _rotated(key)
        if self.groups != self.heads:
            key, value = (
                part.repeat_interleave(self.heads // self.groups, 1) for part in (key, value)
            )
        if self.is_fused:
            heads = functional.scaled_dot_product_attention(
                query, key, value, bias, is_causal=self.is_causal
            )
        else:
            scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
            if bias is not None:
                scores = scores + bias
            if self.is_causal:
                mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
                scores = scores.masked_fill(~mask, float("-inf"))
            heads = functional.dropout(scores.softmax(-1), 0.1, self.training) @ value
        return self.out(heads.transpose(1, 2).reshape(batch, length, WIDTH))  # type: ignore[no-any-return]


def _rotated(x: Tensor) -> Tensor:
    length, width = x.shape[-2:]
    rates = 10000 ** (-torch.arange(0, width, 2, device=x.device) / width)
    angles = torch.arange(length, device=x.device)[:, None] * rates
    first, second = x.float().chunk(2, -1)
    turned = (
        first * angles.cos() - second * angles.sin(),
        second * angles.cos() + first * angles.sin(),
    )
    return torch.cat(turned, -1).to(x.dtype)


class Gated(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """The gated units, projected down."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


class Experts(nn.Module):
    """Two of four experts for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(Gated() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """The weighted sum of the experts."""
        weights, chosen = self.router(x).softmax(-1).topk(2)
        unused = torch.zeros(*x.shape[:-1], 4, dtype=weights.dtype, device=x.device)
        weights = unused.scatter(-1, chosen, weights)
        outputs = torch.stack([expert(x) for expert in self.experts], -1)
        return (outputs * weights[..., None, :]).sum(-1)


def _perceptron(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), activation, nn.Linear(4 * WIDTH, WIDTH))


class Block(nn.Module):
    """A layer of a transformer: norms first, or last as in BERT."""

    def __init__(
        self,
        attention: nn.Module,
        feed: nn.Module,
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
        *,
        is_norm_last: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention, self.feed = attention, feed
        self.norms = nn.ModuleList(norm(WIDTH) for _ in range(2))
        self.is_norm_last, self.dropout = is_norm_last, nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output."""
        for norm, part in zip(self.norms, (self.attention, self.feed), strict=True):
            if self.is_norm_last:
                x = norm(x + self.dropout(part(x)))
            else:
                x = x + self.dropout(part(norm(x)))
        return x


class Language(nn.Module):
    """Blocks between an embedding and the logits of words."""

    def __init__(self, *blocks: nn.Module, is_checkpointed: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(4 * TOKENS, WIDTH)
        self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(WIDTH)
        self.is_checkpointed = is_checkpointed

    def forward(self, tokens: Tensor) -> Tensor:
        """The loss of each next word."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.places(places)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.is_checkpointed else block(x)
        logits = self.norm(x) @ self.words.weight.t()
        return functional.cross_entropy(
            logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten()
        )


class EncoderDecoder(nn.Module):
    """T5: relative places as a bias, and attention of a decoder to the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.bias = nn.Embedding(WORDS, WIDTH), nn.Embedding(2 * TOKENS, 4)
        self.encoder, self.decoder, self.cross = (
            Attention(is_fused=False),
            Attention(is_fused=False, is_causal=True),
            Attention(is_fused=False),
        )
        self.feed, self.norm = _perceptron(nn.ReLU()), nn.RMSNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """The mean of the decoder's output."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        distances = (places[:, None] - places + TOKENS).clamp(0, 2 * TOKENS - 1)
        bias = self.bias(distances).permute(2, 0, 1)[None]
        x = self.words(tokens)
        encoded = x + self.encoder(self.norm(x), bias=bias)
        x = x + self.decoder(self.norm(x), bias=bias)
        x = x + self.cross(self.norm(x), encoded)
        loss: Tensor = (x + self.feed(self.norm(x))).square().mean()
        return loss


class Vision(nn.Module):
    """ViT: patches of an image as tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, WIDTH, 8, 8), nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.blocks = nn.Sequential(*(Block(Attention(), _perceptron(nn.GELU())) for _ in range(2)))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of classes."""
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.first.expand(len(tokens), -1, -1), tokens), 1)
        return self.head(self.blocks(tokens)[:, 0])  # type: ignore[no-any-return]


class Residual(nn.Module):
    """A block of ResNet, with a bottleneck and groups or without."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, groups: int = 0) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolved(inputs, outputs, 1 if groups else 3, stride),
            *(_convolved(outputs, outputs, 3, 1, groups) if groups else ()),
            *_convolved(outputs, outputs, 1 if groups else 3)[:-1],
        )
        self.skip = nn.Sequential(*_convolved(inputs, outputs, 1, stride)[:-1])

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both ways."""
        return functional.relu(self.body(x) + self.skip(x))


def _convolved(
    inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    ]


class Dense(nn.Module):
    """DenseNet: each layer reads all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(3 + 8 * i), nn.ReLU(), nn.Conv2d(3 + 8 * i, 8, 3, 1, 1))
            for i in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        """All features."""
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1)


class Squeezed(nn.Module):
    """MobileNetV3: depthwise convolution, and channels scaled by their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*_convolved(3, 16, 1), *_convolved(16, 16, 3, 2, 16))
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 4, 1), nn.Hardswish(), nn.Conv2d(4, 16, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The scaled channels."""
        x = self.body(x)
        return x * functional.hardsigmoid(self.scale(x))


class Diffusion(nn.Module):
    """A UNet with the time's embedding and attention in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 32))
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.down, self.middle = (nn.Conv2d(32, size, 3, 2, 1) for size in (32, WIDTH))
        self.attention, self.norm = Attention(), nn.GroupNorm(8, WIDTH)
        self.up = nn.ConvTranspose2d(WIDTH, 32, 4, 2, 1)
        self.last = nn.Sequential(nn.GroupNorm(8, 64), nn.SiLU(), nn.Conv2d(64, 3, 3, padding=1))

    def forward(self, images: Tensor) -> Tensor:
        """The noise."""
        rates = torch.exp(-torch.arange(16, device=images.device) / 4)
        angles = torch.arange(len(images), device=images.device)[:, None] * rates
        time = self.time(torch.cat((angles.sin(), angles.cos()), 1))[:, :, None, None]
        down = functional.silu(self.down(self.first(images)) + time)
        middle = self.middle(down)
        tokens = self.norm(middle).flatten(2).transpose(1, 2)
        middle = middle + self.attention(tokens).transpose(1, 2).view_as(middle)
        up = torch.cat((self.up(middle), down), 1)
        return self.last(functional.interpolate(up, scale_factor=2.0))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """LSTM, cell by cell."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """All hidden states."""
        state = torch.zeros(2, len(x), WIDTH, device=x.device).unbind()
        outputs = []
        for step in x.unbind(1)[:4]:
            state = self.cell(step, state)
            outputs.append(state[0])
        return torch.stack(outputs, 1)


def _tokens(batch: int = 2, length: int = TOKENS) -> Tensor:
    return torch.randint(WORDS, (batch, length), device="cuda")


def _states() -> Tensor:
    return torch.randn(2, TOKENS, WIDTH, device="cuda")


def _images(size: int = 32) -> Tensor:
    return torch.randn(2, 3, size, size, device="cuda")


_backward: Callable[[Tensor], None] = torch.autograd.backward


def train(
    make: Callable[[], nn.Module],
    inputs: Callable[[], Tensor],
    *,
    dtype: torch.dtype = torch.float32,
    layout: torch.memory_format = torch.preserve_format,
    **options: Any,
) -> None:
    """Two steps of a compiled module.

    Args:
        make: the module.
        inputs: of one step.
        dtype: of autocast; ``float32`` without.
        layout: of the module's parameters.
        options: of ``torch.compile``.
    """
    module: Any = make().cuda()
    module.to(memory_format=layout)
    step: Any = torch.compile(module, **options)
    for _ in range(2):
        with torch.autocast("cuda", dtype, enabled=dtype is not torch.float32):
            loss = step(inputs()).float().square().mean()
        _backward(loss)
        module.zero_grad()


def evaluate(make: Callable[[], nn.Module], inputs: Callable[[], Tensor]) -> None:
    """One call without gradients."""
    module = make().cuda().eval()
    with torch.no_grad():
        torch.compile(module)(inputs())


def optimize(kind: Callable[..., Any], **options: Any) -> None:
    """Two steps of a compiled optimizer."""
    module = _perceptron(nn.ReLU()).cuda()
    optimizer: Any = kind(module.parameters(), lr=0.01, **options)
    step: Any = torch.compile(optimizer.step)
    for _ in range(2):
        _backward(module(torch.ones(2, WIDTH, device="cuda")).sum())
        step()
        optimizer.zero_grad()


def train_lengths() -> None:
    """A language model at several lengths: the second one makes the graph dynamic."""
    module = Language(_gpt2()).cuda()
    step: Any = torch.compile(module)
    for length in (16, 24, 32, 40):
        _backward(step(_tokens(length=length)))


def _gpt2() -> Block:
    return Block(Attention(is_causal=True), _perceptron(nn.GELU(approximate="tanh")), dropout=0.1)


def _llama(feed: type[nn.Module] = Gated) -> Block:
    return Block(Attention(groups=2, is_causal=True), feed(), nn.RMSNorm)


def _bert() -> Block:
    attention = Attention(is_fused=False)
    return Block(attention, _perceptron(nn.GELU()), is_norm_last=True, dropout=0.1)


def _resnet(groups: int = 0) -> nn.Module:
    blocks = Residual(16, 16, groups=groups), Residual(16, 32, 2, groups)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)
    return nn.Sequential(*_convolved(3, 16, 7, 2), nn.MaxPool2d(3, 2, 1), *blocks, *head)


def _vgg() -> nn.Module:
    features = *_convolved(3, 8), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.AvgPool2d(2)
    return nn.Sequential(*features, nn.Flatten(), nn.Dropout(), nn.Linear(16 * 49, 10))


MODELS: Final[dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]]] = {
    "gpt2": (lambda: Language(_gpt2(), _gpt2()), _tokens),
    "llama": (lambda: Language(_llama(), _llama()), _tokens),
    "bert": (lambda: Language(_bert(), _bert()), _tokens),
    "mixture of experts": (lambda: Language(_llama(Experts)), _tokens),
    "t5": (EncoderDecoder, _tokens),
    "vit": (Vision, _images),
    "resnet": (_resnet, _images),
    "resnext": (partial(_resnet, 4), _images),
    "vgg": (_vgg, _images),
    "densenet": (Dense, _images),
    "mobilenet": (Squeezed, _images),
    "unet": (Diffusion, _images),
    "lstm": (Recurrent, _states),
}
"""Models by their names, and the inputs of a step."""

_LAST = torch.channels_last
_OPTIMIZERS = (
    *(torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop),
    *(torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.NAdam, torch.optim.RAdam),
)

PROGRAMS: Final[dict[str, Callable[[], None]]] = {
    **{name: partial(train, *model) for name, model in MODELS.items()},
    **{f"{name}, evaluated": partial(evaluate, *model) for name, model in MODELS.items()},
    **{
        f"{name}, bfloat16": partial(train, *model, dtype=torch.bfloat16)
        for name, model in MODELS.items()
    },
    **{f"{name}, dynamic": partial(train, *model, dynamic=True) for name, model in MODELS.items()},
    **{
        f"{name}, channels last": partial(train, *MODELS[name], layout=_LAST)
        for name in ("resnet", "resnext", "vgg", "densenet", "mobilenet", "unet")
    },
    "gpt2, checkpointed": partial(train, lambda: Language(_gpt2(), is_checkpointed=True), _tokens),
    "gpt2, several lengths": train_lengths,
    **{kind.__name__: partial(optimize, kind) for kind in _OPTIMIZERS},
    "SGD with momentum": partial(optimize, torch.optim.SGD, momentum=0.9),
    "AdamW of fused kernels": partial(optimize, torch.optim.AdamW, fused=True),
    "AdamW, one by one": partial(optimize, torch.optim.AdamW, foreach=False),
}
"""Programs by their names."""
