"""The memory that the host has left for this process, the limit of its container included."""

from __future__ import annotations

from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def free_host_memory() -> int:
    """Bytes that this process can still take, within the limits of its control groups."""
    import psutil

    available: int = psutil.virtual_memory().available
    return max(0, min([available, *_left_in_groups(_MEMBERSHIP, _GROUPS)]))


def _left_in_groups(membership: Path, root: Path) -> list[int]:
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    left: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            names = ("memory.max", "memory.current", "inactive_file")
            left += _left_upwards(root, path, names)
        elif "memory" in controllers.split(","):
            # Version 1; the total_ figures include the groups below.
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            left += _left_upwards(root / "memory", path, names)
    return left


def _left_upwards(root: Path, path: str, names: tuple[str, str, str]) -> list[int]:
    """The bytes that the limits of a group, and of each one above it, leave."""
    group = root / path.strip("/")
    groups = [root]
    if group.is_dir():  # from inside a container its own group is the root, whatever it is called
        above = [each for each in group.parents if each.is_relative_to(root)]
        groups = list(dict.fromkeys([group, *above]))
    return [left for each in groups if (left := _left_in(each, *names)) is not None]


def _left_in(group: Path, limit: str, usage: str, cache: str) -> int | None:
    try:
        most = int((group / limit).read_text())
        used = int((group / usage).read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no limit: "max", or no file at all
        return None
    return most - used + int(statistics.get(cache, 0))
