"""Floating point operations of graphs, and those that a backward pass computes a second time.

PyTorch's own formulas count: those of matrix products, convolutions and attentions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch._inductor import compile_fx
from torch.fx import GraphModule
from torch.utils._pytree import tree_map

from ..._common.frames.compiled_code import GraphFlops
from ..._common.patching.patches import Patches

_SECOND_TIME: Final = "is computed a second time"
"""Key of a node's ``meta``."""


def install(patches: Patches) -> None:
    """Let backward graphs tell what they compute a second time, until undone."""

    @patches.around(compile_fx, "min_cut_rematerialization_partition")
    def partition(
        original: Callable[..., tuple[GraphModule, GraphModule]], *args: Any, **kwargs: Any
    ) -> tuple[GraphModule, GraphModule]:
        forward, backward = original(*args, **kwargs)
        first = {node.name for node in forward.graph.nodes if node.op == "call_function"}
        for node in backward.graph.nodes:
            if node.op == "call_function" and node.name in first:
                node.meta[_SECOND_TIME] = True
        return forward, backward


def flops_of(graph: torch.fx.Graph) -> GraphFlops:
    """The operations of one run of a graph, with the sizes that it was traced with."""
    from torch.utils.flop_counter import flop_registry  # which warns where Triton is missing

    whole = second = 0
    for node in graph.nodes:
        formula = flop_registry.get(getattr(node.target, "_overloadpacket", None))
        if formula is None:
            continue
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda arg: arg.meta["val"])
        args, kwargs, result = tree_map(_shape_alone, (args, kwargs, node.meta["val"]))
        count: int = formula(*args, **kwargs, out_val=result)
        whole += count
        second += count if _SECOND_TIME in node.meta else 0
    return GraphFlops(whole, second)


def _shape_alone(value: Any) -> Any:
    """A tensor of the shape that one of a graph was traced with, or a size of it."""
    if isinstance(value, torch.SymInt):
        return value.node.hint or 0
    if isinstance(value, torch.Tensor):
        return torch.empty([_shape_alone(size) for size in value.shape], device="meta")
    return value
