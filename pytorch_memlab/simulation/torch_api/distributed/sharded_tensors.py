"""``ShardedTensor`` under simulation: where the shards of the ranks lie that are not there."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ...._common.patching.patches import Patches


def install(
    patches: Patches,
    api: Any,  # the module ``torch.distributed._shard.sharded_tensor.api``
    is_simulated: Callable[[], bool],  # whether the ranks are one that is simulated
) -> None:
    """Let a sharded tensor be made of the shards that each rank has, until undone."""

    @patches.around(api, "build_global_metadata")
    def build_global_metadata(
        build: Callable[..., Any], gathered: list[Any], *args: Any, **options: Any
    ) -> Any:
        return build(_of_each_rank(gathered) if is_simulated() else gathered, *args, **options)


def _of_each_rank(gathered: list[Any]) -> list[Any]:
    """The metadata of all ranks, made of copies of this one's."""
    # Ranks hold equal parts of one dimension in their order, the last ones less or nothing, as
    # ``FullyShardedDataParallel`` and ``chunk`` make them. What is otherwise is left as it is.
    own, ranks = gathered[0], len(gathered)
    if own is None or len(own.shards_metadata) != 1:
        return gathered
    (shard,) = own.shards_metadata
    dims = [dim for dim, size in enumerate(own.size) if shard.shard_sizes[dim] != size]
    if not dims:
        return [own, *[None] * (ranks - 1)]
    if len(dims) > 1:
        return gathered
    dim = dims[0]
    rank = shard.placement.rank()
    index, begin, part = rank % ranks, shard.shard_offsets[dim], shard.shard_sizes[dim]
    if index and begin + part == own.size[dim]:  # it may be a shorter one
        part = begin // index
    return [
        _moved(own, dim, number * part, part, f"rank:{rank - index + number}")
        for number in range(ranks)
    ]


def _moved(own: Any, dim: int, begin: int, part: int, rank: str) -> Any:
    """The metadata of a rank whose part of a dimension begins there; None if it has no part."""
    size = min(part, own.size[dim] - begin)
    if size <= 0:
        return None
    metadata = copy.deepcopy(own)
    (shard,) = metadata.shards_metadata
    for values, value in ((shard.shard_offsets, begin), (shard.shard_sizes, size)):
        values[dim] = value
    shard.placement = type(shard.placement)(f"{rank}/{shard.placement.device()}")
    return metadata
