"""Training of a graph neural network over code, on three GPUs of one process, until one is full.

A language model makes embeddings of eight texts. The five nodes of each text's graph that are most
like its text are where the reasoning over the graph starts. ``DataParallel`` of PyTorch Geometric
gives each GPU some of the graphs. The forward pass of the second GPU, which has the largest graph,
does not fit, and the program saves its memory history.

Qwen3-Embedding-0.6B is written again as ``transformers`` runs it, and so is what PyTorch Geometric
does. Both libraries are not needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.nn.parallel import parallel_apply, replicate

from pytorch_memlab.simulation.ops.sorting import sorting

GPUS = 3

ENVIRONMENT = {
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    # The recorded release is 2.8. Before 2.13 cuBLAS multiplies columns by rows, and no Triton.
    "TORCH_DISABLE_NATIVE_JIT": "1",
}

# Not published: the tokens of the longest text, the nodes of each graph, and the edges of all
# graphs of a GPU. The recordings of the three GPUs tell them by the bytes of the copies.
TOKENS = 376
NODES = (1578, 231, 32_555, 767, 1832, 925, 5891, 925)
EDGES = ((0, 9911), (2, 324_017), (3, 34_245))  # given to the first graph of each GPU

VOCABULARY, WIDTH, INNER, LAYERS = 151_669, 1024, 3072, 28
HEADS, KEY_HEADS, HEAD_WIDTH = 16, 8, 128
INSTRUCTIONS, HOPS, ROUNDS, SEEDS = 4, 4, 3, 5

OPTIONS = {"count": GPUS, "assume": {"nonzero": 2 * SEEDS}}
"""Which nodes are seeds depends on values, which a dry run does not have. The first GPU, which the
recording is of, has two graphs."""


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-6)
        return self.weight * x


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def rotate(queries: Tensor, keys: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    rotated_queries = (queries * cos) + (rotate_half(queries) * sin)
    rotated_keys = (keys * cos) + (rotate_half(keys) * sin)
    return rotated_queries, rotated_keys


class Rotation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        exponents = torch.arange(0, HEAD_WIDTH, 2) / HEAD_WIDTH
        self.register_buffer("frequencies", 1_000_000**-exponents, persistent=False)

    @torch.no_grad()
    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        at = positions[:, None, :].float()
        angles = (self.frequencies[None, :, None] @ at).transpose(1, 2)
        both = torch.cat((angles, angles), dim=-1)
        cos = both.cos() * 1.0
        sin = both.sin() * 1.0
        return cos, sin


class KeysAndValues:
    """Those of a layer, which the library keeps for tokens that come later."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys = keys
        self.values = values


def for_all_heads(x: Tensor) -> Tensor:
    """``repeat_kv``."""
    batch, heads, length, width = x.shape
    times = HEADS // KEY_HEADS
    return (
        x[:, :, None]
        .expand(batch, heads, times, length, width)
        .reshape(batch, heads * times, length, width)
    )


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    keys = for_all_heads(keys)
    values = for_all_heads(values)
    queries = queries.contiguous()
    mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    return mixed.transpose(1, 2).contiguous()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, HEADS * HEAD_WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, KEY_HEADS * HEAD_WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, KEY_HEADS * HEAD_WIDTH, bias=False)
        self.out = nn.Linear(HEADS * HEAD_WIDTH, WIDTH, bias=False)
        self.query_norm, self.key_norm = RMSNorm(HEAD_WIDTH), RMSNorm(HEAD_WIDTH)

    def forward(
        self, x: Tensor, mask: Tensor, turns: tuple[Tensor, Tensor], cache: list[KeysAndValues]
    ) -> Tensor:
        by_head = (*x.shape[:-1], -1, HEAD_WIDTH)
        queries = self.query_norm(self.query(x).view(by_head)).transpose(1, 2)
        keys = self.key_norm(self.key(x).view(by_head)).transpose(1, 2)
        values = self.value(x).view(by_head).transpose(1, 2)
        queries, keys = rotate(queries, keys, *turns)
        cache.append(KeysAndValues(keys, values))
        mixed = attend(queries, keys, values, mask)
        mixed = mixed.flatten(2)
        projected = self.out(mixed)
        del mixed
        return projected


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, INNER, bias=False)
        self.up = nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.first_norm, self.second_norm = RMSNorm(WIDTH), RMSNorm(WIDTH)

    def forward(
        self, x: Tensor, mask: Tensor, turns: tuple[Tensor, Tensor], cache: list[KeysAndValues]
    ) -> Tensor:
        before = x
        x = self.first_norm(x)
        x = self.attention(x, mask, turns, cache)
        x = before + x
        before = x
        x = self.second_norm(x)
        x = self.feed_forward(x)
        return before + x


def causal_mask(padding: Tensor, cache_position: Tensor) -> Tensor:
    padding = padding.to(dtype=torch.bool)
    return vectorized_mask(padding, cache_position)


def vectorized_mask(padding: Tensor, cache_position: Tensor) -> Tensor:
    """A mask for each text, by the library's way: a function of four indices, vectorized."""
    if padding.all():
        raise AssertionError("texts differ in length")
    keys = torch.arange(padding.shape[1], device=padding.device)

    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        result = query.new_ones((), dtype=torch.bool)
        result = result & (key <= query)
        return result & padding[batch, key]

    over_all = allowed
    for index in (3, 2, 1, 0):
        dims = [None, None, None, None]
        dims[index] = 0
        over_all = torch.vmap(over_all, in_dims=tuple(dims), out_dims=0)
    texts = torch.arange(padding.shape[0], device=padding.device)
    heads = torch.arange(1, device=padding.device)
    with TransformGetItemToIndex():
        return over_all(texts, heads, cache_position, keys)


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = RMSNorm(WIDTH)
        self.rotation = Rotation()

    def forward(self, tokens: Tensor, padding: Tensor) -> tuple[Tensor, list[KeysAndValues]]:
        cache: list[KeysAndValues] = []
        embedded = self.embedding(tokens)
        cache_position = torch.arange(embedded.shape[1], device=embedded.device)
        positions = cache_position.unsqueeze(0)
        masks = {"full_attention": causal_mask(padding, cache_position)}
        kept = {"embedded": embedded, "positions": cache_position}
        del embedded, positions, cache_position
        x = kept["embedded"]
        cos, sin = self.rotation(kept["positions"].unsqueeze(0))
        turns = (cos.unsqueeze(1), sin.unsqueeze(1))
        del cos, sin
        for block in self.blocks:
            x = block(x, masks["full_attention"], turns, cache)
        x = self.norm(x)
        return x, cache


def mean_of_tokens(embedded: Tensor, padding: Tensor) -> Tensor:
    masked = embedded * padding
    tokens = padding.sum(dim=1)
    tokens = torch.clamp(tokens, min=1.0)
    total = masked.sum(dim=1)
    return total / tokens


def cosine_similarity(first: Tensor, second: Tensor) -> Tensor:
    """That of PyTorch 2.8 (``aten/src/ATen/native/Distance.cpp``); later ones compare otherwise."""
    first_norm = torch.linalg.vector_norm(first, 2, 1, keepdim=True).clone()
    second_norm = torch.linalg.vector_norm(second, 2, 1, keepdim=True).clone()
    first_norm.clamp_min_(1e-8)
    second_norm.clamp_min_(1e-8)
    first_unit = first / first_norm
    second_unit = second / second_norm
    product = first_unit * second_unit
    cosines = product.sum(1)
    # C++ destroys the last first.
    del product, second_unit, first_unit, second_norm, first_norm
    return cosines


def seeds(nodes: Tensor, text: Tensor, graph_of_node: Tensor) -> Tensor:
    """The same weight for the nodes of each graph that are most like its text."""
    nodes = nodes.to(text.device)
    text_of_node = text[graph_of_node]
    likeness = cosine_similarity(nodes, text_of_node)
    weights = torch.zeros(nodes.shape[0], dtype=torch.float32, device=nodes.device)
    for graph in range(text.shape[0]):
        members = (graph_of_node == graph).nonzero(as_tuple=True)[0]
        likeness_of_members = likeness[members]
        _, best = torch.topk(likeness_of_members, k=min(SEEDS, len(members)))
        chosen = members[best]
        weights[chosen] = 1.0
    return weights / SEEDS


class Reasoner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read = nn.ModuleList()
        for _ in range(INSTRUCTIONS):
            self.read.append(nn.Linear(4 * WIDTH, WIDTH, bias=False))
            self.read.append(nn.Linear(4 * WIDTH, WIDTH, bias=False))
        self.score_of_token = nn.Linear(WIDTH, 1, bias=False)
        self.revise = nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.hops = nn.ModuleList()
        for _ in range(HOPS):
            self.hops.append(nn.Linear(WIDTH, WIDTH, bias=False))
            self.hops.append(nn.Linear((INSTRUCTIONS + 1) * WIDTH, WIDTH, bias=False))
        self.score_of_node = nn.Parameter(torch.randn(WIDTH))

    def instructions(self, tokens: Tensor, padding: Tensor, text: Tensor) -> Tensor:
        """Each is a mean of the text's tokens, weighted by the text and the one before."""
        before = torch.zeros(WIDTH).expand(tokens.shape[0], 1, WIDTH).to(tokens.device)
        text = text.unsqueeze(1)
        made: list[Tensor] = []
        for index in range(INSTRUCTIONS):
            features = torch.cat([before, text, text * before, text - before], dim=-1)
            wanted = self.read[2 * index](features)
            everywhere = wanted.expand(-1, tokens.shape[1], -1)
            similar = everywhere * tokens
            scores = self.score_of_token(similar).squeeze(-1)
            scores = scores.masked_fill(padding.squeeze(-1) == 0, -1e9)
            weights = F.softmax(scores, dim=-1)
            weighted = weights.unsqueeze(-1) * tokens * padding
            instruction = torch.sum(weighted, dim=1, keepdim=True)
            made.append(instruction)
            before = instruction
        instructions = torch.cat(made, dim=1)
        del made
        return instructions

    def hop(
        self,
        nodes: Tensor,
        weights: Tensor,
        instructions: Tensor,
        edges: Tensor,
        graph_of_node: Tensor,
        index: int,
    ) -> tuple[Tensor, Tensor]:
        """Messages along all edges, one for each instruction."""
        sources, targets = edges
        by_edge = instructions[graph_of_node[sources]]
        neighbors = self.hops[2 * index](nodes[sources])
        messages = by_edge * neighbors.unsqueeze(1)
        active = F.relu(messages)
        weight_of_edge = weights[sources].view(-1, 1, 1)
        weighted = weight_of_edge * active
        # torch_geometric.utils.scatter
        shape = (nodes.shape[0], *weighted.shape[1:])
        at = targets.view(-1, 1, 1).expand_as(weighted)
        received = weighted.new_zeros(shape).scatter_add_(0, at, weighted)
        flat = received.view(nodes.shape[0], -1)
        together = torch.cat([nodes, flat], dim=1)
        nodes_after = F.relu(self.hops[2 * index + 1](together))
        scores = torch.matmul(nodes_after, self.score_of_node)
        weights_after = F.softmax(scores, dim=0)
        return nodes_after, weights_after

    def revised(
        self, weights: Tensor, nodes: Tensor, instructions: Tensor, graph_of_node: Tensor
    ) -> Tensor:
        """The instructions, after what the seeds have learned."""
        is_seed = weights > 0
        where = is_seed.nonzero(as_tuple=True)[0]
        seed_nodes = nodes[where]
        graph_of_seed = graph_of_node[where]
        graphs = graph_of_node.max().item() + 1
        learned = torch.zeros((graphs, WIDTH), device=nodes.device)
        learned.scatter_add_(0, graph_of_seed.unsqueeze(1).expand(-1, WIDTH), seed_nodes)
        made: list[Tensor] = []
        for index in range(INSTRUCTIONS):
            old = instructions[:, index, :]
            features = torch.cat([old, learned, old - learned, old * learned], dim=-1)
            new = self.revise(features)
            gate = torch.sigmoid(self.read[2 * index + 1](features))
            mixed = (1 - gate) * old + gate * new
            made.append(mixed)
        revised = torch.stack(made, dim=1)
        del made
        return revised

    def forward(self, graphs: SimpleNamespace) -> Tensor:
        nodes = graphs.nodes
        tokens = graphs.tokens
        padding = graphs.padding
        graph_of_node = graphs.graph_of_node
        edges = graphs.edges
        text = graphs.text
        seeds = graphs.seeds
        start = seeds.detach()
        instructions = self.instructions(tokens, padding, text)
        before = nodes
        for turn in range(ROUNDS):
            weights = seeds if turn == 0 else start.detach()
            now = before
            for index in range(HOPS):
                after, weights_after = self.hop(
                    now, weights, instructions, edges, graph_of_node, index
                )
                now = after
                weights = weights_after
            out = now
            out_weights = weights
            instructions = self.revised(seeds, out, instructions, graph_of_node)
            before = out
        return out_weights


def together(graphs: Sequence[SimpleNamespace]) -> SimpleNamespace:
    """``torch_geometric.data.Batch.from_data_list``."""
    batch = SimpleNamespace()
    for name in vars(graphs[0]):
        parts = [getattr(graph, name) for graph in graphs]
        setattr(batch, name, torch.cat(parts, dim=1 if name == "edges" else 0))
    repeats = [len(graph.nodes) for graph in graphs]
    device = batch.seeds.device
    parts = [torch.full((count,), i, device=device) for i, count in enumerate(repeats)]
    batch.graph_of_node = torch.cat(parts)
    del parts
    counts = torch.tensor(repeats, device=device)
    batch.begins = counts.new_empty(len(repeats) + 1)
    batch.begins[:1] = 0
    torch.cumsum(counts, 0, out=batch.begins[1:])
    return batch


def moved(batch: SimpleNamespace, device: torch.device) -> SimpleNamespace:
    """``Data.to``."""
    for name, value in vars(batch).items():
        setattr(batch, name, value.to(device))
    return batch


def in_parallel(model: Reasoner, graphs: Sequence[SimpleNamespace]) -> list[Tensor]:
    """``torch_geometric.nn.DataParallel``: whole graphs, by where the middle of each lies."""
    counts = torch.tensor([len(graph.nodes) for graph in graphs])
    ends = counts.cumsum(0)
    middles = (ends - counts / 2) / ends[-1]
    of_gpu = (middles * GPUS).long().bincount().tolist()
    inputs = []
    begin = 0
    for gpu, count in enumerate(of_gpu):
        part = graphs[begin : begin + count]
        inputs.append(moved(together(part), torch.device("cuda", gpu)))
        begin += count
    replicas = replicate(model, range(GPUS))
    return parallel_apply(replicas, [(part,) for part in inputs], None)


def train(model: Reasoner, language_model: LanguageModel) -> None:
    graphs = [
        SimpleNamespace(
            nodes=torch.zeros(count, WIDTH),
            edges=torch.zeros(2, dict(EDGES).get(index, 0), dtype=torch.int64),
            types=torch.zeros(dict(EDGES).get(index, 0), dtype=torch.int64),
            tokens=None,
            labels=torch.zeros(count, dtype=torch.int64),
        )
        for index, count in enumerate(NODES)
    ]
    tokens = torch.zeros(len(NODES), TOKENS, dtype=torch.int64)
    padding = torch.ones(len(NODES), TOKENS, dtype=torch.int64)
    padding[1:, -1] = 0  # how much shorter the other texts are, no size depends on
    tokens, padding = tokens.to("cuda"), padding.to("cuda")
    with torch.no_grad():
        embedded = language_model(tokens, padding)[0]
    texts = mean_of_tokens(embedded, padding.unsqueeze(-1))
    for index, graph in enumerate(graphs):
        graph.tokens = embedded[index].unsqueeze(0)
        graph.padding = padding[index].view(1, -1, 1)
        graph.text = texts[index].unsqueeze(0)
        graph.seeds = seeds(
            graph.nodes,
            texts[index].unsqueeze(0),
            torch.zeros(len(graph.nodes), dtype=torch.int).to("cuda"),
        )
    in_parallel(model, graphs)


@contextmanager
def as_recorded() -> Iterator[None]:
    """Within: the environment of the program, and the temporaries of ``topk`` in PyTorch 2.8."""
    with patch.dict(os.environ, ENVIRONMENT), patch.object(sorting, "RELEASE", (2, 8)):
        yield


def run(begin: Callable[[], None], end: Callable[[], None]) -> None:
    with as_recorded():
        begin()
        model = Reasoner().to("cuda")
        language_model = LanguageModel().to("cuda")
        try:
            train(model, language_model)
        except torch.OutOfMemoryError:
            end()
