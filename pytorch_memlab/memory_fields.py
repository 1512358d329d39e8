"""Fields of ``torch.cuda.memory_stats()``."""

from itertools import product

GROUPS = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
POOLS = ("all", "small_pool", "large_pool")
METRICS = ("current", "peak", "allocated", "freed")
OVERSIZE_GROUPS = ("oversize_allocations", "oversize_segments")
"""Groups without pools: blocks that ``max_split_size`` keeps whole."""
EVENTS = (
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
    "num_oom_rejections",
)
"""Counts without metrics. PyTorch has not had all of them always."""
SETTINGS = ("max_split_size",)

FIELDS = (
    *(".".join(parts) for parts in product(GROUPS, POOLS, METRICS)),
    *(".".join(parts) for parts in product(OVERSIZE_GROUPS, METRICS)),
    *EVENTS,
    *SETTINGS,
)
