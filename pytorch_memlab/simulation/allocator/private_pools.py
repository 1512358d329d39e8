"""The private pools of one device, which requests they serve, and how long they keep their memory.

``c10/cuda/CUDACachingAllocator.cpp`` of PyTorch 2.13: ``graph_pools``, ``captures_underway``,
``use_on_oom_pools`` and ``no_split_pools``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from .blocks import BlockPool, PoolId, PrivatePool
from .stats import DeviceStats

StreamFilter: TypeAlias = Callable[[int], bool]
"""Whether requests of a stream, by its id, go to a pool."""


class PrivatePools:
    """The private pools by their ids, and the filters of those that take requests now."""

    def __init__(self, stats: DeviceStats) -> None:
        self.by_id: dict[PoolId, PrivatePool] = {}
        self.filters: list[tuple[PoolId, StreamFilter]] = []
        self.served_on_oom: dict[PoolId, None] = {}
        self._stats = stats

    def __iter__(self) -> Iterator[PrivatePool]:
        return iter(self.by_id.values())

    def of_id(self, pool_id: PoolId) -> PrivatePool:
        """The pool of an id, used once if it is new."""
        pool = self.by_id.get(pool_id)
        if pool is None:
            pool = self.by_id[pool_id] = PrivatePool(pool_id, self._stats)
        return pool

    def of_stream(self, stream: int) -> PoolId | None:
        """The pool that takes the requests of a stream: of several, the one begun last."""
        for pool_id, takes in reversed(self.filters):
            if takes(stream):
                return pool_id
        return None

    def use(self, pool_id: PoolId) -> None:
        """Make a pool, or count one more use of it."""
        # Raises RuntimeError if nothing used the pool any more, though tensors are still in it.
        pool = self.by_id.get(pool_id)
        if pool is None:
            self.of_id(pool_id)
        elif not pool.use_count:
            raise RuntimeError(
                "it->second->use_count > 0 INTERNAL ASSERT FAILED: "
                f"nothing uses the memory pool {pool_id} any more"
            )
        else:
            pool.use_count += 1

    def begin(self, pool_id: PoolId, takes: StreamFilter) -> None:
        """Let a pool take the requests of some streams, which uses it."""
        self.use(pool_id)
        if any(other == pool_id for other, _ in self.filters):
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self.filters.append((pool_id, takes))

    def end(self, pool_id: PoolId) -> None:
        """Let a pool take no more requests; it is still used."""
        for index, (other, _) in enumerate(self.filters):
            if other == pool_id:
                del self.filters[index]
                return
        raise RuntimeError("endAllocatePool: not currently recording to mempool_id")

    def release(self, pool_id: PoolId) -> None:
        """Count one use less; a pool without any gives its free segments back with the cache."""
        pool = self._known(pool_id)
        if not pool.use_count:
            raise RuntimeError(f"uc >= 0 INTERNAL ASSERT FAILED: {pool_id} is not in use")
        pool.use_count -= 1

    def use_count(self, pool_id: PoolId) -> int:
        return self._known(pool_id).use_count

    def block_pool(self, pool_id: PoolId, *, is_small: bool) -> BlockPool:
        """The blocks of one size class of a pool."""
        pool = self.of_id(pool_id)
        return pool.small if is_small else pool.large

    def freeable(self, pool_id: PoolId | None) -> list[PrivatePool]:
        """The pools that nothing uses: all of them, or the one of an id."""
        return [pool for pool in self if not pool.use_count and pool_id in (None, pool.pool_id)]

    def forget_empty(self, pool: PrivatePool) -> None:
        """Forget a pool that nothing uses and that has no memory left."""
        if not pool.reserved_bytes["all"].current:
            del self.by_id[pool.pool_id]

    def _known(self, pool_id: PoolId) -> PrivatePool:
        pool = self.by_id.get(pool_id)
        if pool is None:
            raise RuntimeError(
                f"it != graph_pools.end() INTERNAL ASSERT FAILED: no memory pool is {pool_id}"
            )
        return pool
