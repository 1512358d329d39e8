"""Objects that ranks send to each other: ``send_object_list`` and the collectives of objects.

The objects go from rank to rank as pickles, and the functions of PyTorch run as they are: they take
the memory for sizes and bytes that they take with NCCL. Only what they read is put in place.
"""

from __future__ import annotations

import functools
import inspect
import pickle
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist

from ...._common.patching.patches import Patches
from ....errors import UnsupportedCUDACallError
from .exchanged_values import in_flight
from .one_rank import SimulatedGroup
from .peers import Peers, peers

_HOW: Final = (
    "simulate the ranks together (pytorch-memlab fit --ranks all, or pytorch-memlab run --"
    " torchrun)"
)
_MESH: Final = "--mesh takes the two to be alike: give it the dimensions that the program has"


def replaced() -> list[tuple[Any, Any]]:
    """Let objects come from the ranks that run; a value that no rank has is refused by name."""
    calls = (
        ("send_object_list", _send),
        ("recv_object_list", _receive),
        ("broadcast_object_list", _broadcast),
        ("scatter_object_list", _scatter),
        ("all_gather_object", _all_gather),
        ("gather_object", _gather),
    )
    return [
        (getattr(dist, name), _around(getattr(dist, name), exchange))
        for name, exchange in calls
        if hasattr(dist, name)
    ]


def install(patches: Patches) -> None:
    """Let what is read of a tensor be the object that another rank has sent."""

    @patches.around(dist.distributed_c10d, "_tensor_to_object")
    def tensor_to_object(
        read: Callable[..., Any], tensor: torch.Tensor, tensor_size: Any, *group: Any
    ) -> Any:
        received = in_flight.objects
        if received is None:
            return read(tensor, tensor_size, *group)
        return pickle.loads(received.popleft())  # noqa: S301 - a rank of the same program sent it


class _Call:
    """One call of a function that sends or receives objects."""

    def __init__(self, name: str, original: Callable[..., Any], arguments: dict[str, Any]) -> None:
        self.name = name
        self.arguments = arguments
        self.group: Any = arguments.get("group") or dist.group.WORLD
        self.ranks = dist.get_process_group_ranks(self.group)
        self.own = dist.get_rank()
        self.peers: Peers | None = peers() if len(self.ranks) > 1 else None
        self._original = original

    def rank_of(self, name: str) -> int | None:
        """The other rank, or the root, by its global number: ``src`` or ``dst``."""
        of_group = self.arguments.get(f"group_{name}")
        if of_group is not None:
            return int(self.ranks[of_group])
        rank: int | None = self.arguments.get(name)
        return rank

    def channel(self, *ranks: int) -> str:
        return "/".join([self.group.group_name, self.name, *map(str, ranks)])

    def message_channel(self, sender: int, receiver: int) -> str:
        return f"{self.group.group_name}/objects/{sender}>{receiver}"

    def from_rank(self, rank: int, channel: str) -> Any:
        """The objects that a rank has sent in this call."""
        assert self.peers is not None
        text = self.peers.receive(channel, self.peers.claim(channel), rank, self.name)
        return pickle.loads(text)  # noqa: S301 - a rank of the same program sent it

    def run(self, sizes: Sequence[Sequence[int]] = (), objects: Sequence[bytes] = ()) -> Any:
        """Call PyTorch's own function, which reads these sizes and objects."""
        with in_flight.receiving(sizes, objects):
            return self._original(**self.arguments)

    def refused(self, rank: int | str) -> UnsupportedCUDACallError:
        how = _HOW if self.peers is None else _MESH
        return UnsupportedCUDACallError(
            f"{self.name}: the objects of rank {rank} are not known, because it is not simulated"
            f" beside rank {self.own}; {how}"
        )


def _around(original: Callable[..., Any], exchange: Callable[[_Call], Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def exchanged(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        group = arguments.get("group") or dist.group.WORLD
        if not isinstance(group, SimulatedGroup):
            return original(*args, **kwargs)
        return exchange(_Call(original.__name__, original, arguments))

    return exchanged


def _sizes(pickles: Sequence[bytes]) -> list[int]:
    return [len(pickled) for pickled in pickles]


def _send(call: _Call) -> Any:
    other = call.rank_of("dst")
    if call.peers is not None and other in call.peers.beside:
        pickles = [pickle.dumps(item) for item in call.arguments["object_list"]]
        call.peers.send(
            f"{call.group.group_name}/objects/{call.own}>{other}", pickle.dumps(pickles)
        )
    return call.run()


def _receive(call: _Call) -> Any:
    other = call.rank_of("src")
    if other is None:
        raise call.refused("any")
    if call.peers is None or other not in call.peers.beside:
        raise call.refused(other)
    pickles = call.from_rank(other, call.message_channel(other, call.own))
    if len(pickles) != len(call.arguments["object_list"]):
        raise ValueError(
            f"rank {other} sends {len(pickles)} objects, and rank {call.own} receives"
            f" {len(call.arguments['object_list'])}"
        )
    return call.run([_sizes(pickles)], pickles)


def _broadcast(call: _Call) -> Any:
    root = call.rank_of("src")
    root = 0 if root is None else root
    own = [pickle.dumps(item) for item in call.arguments["object_list"]]
    channel = call.channel(root)
    if root == call.own:
        if call.peers is not None:
            call.peers.send(channel, pickle.dumps(own))
        return call.run(objects=own)
    if call.peers is not None and root in call.peers.known:
        own = call.from_rank(root, channel)
    elif any(item is None for item in call.arguments["object_list"]):
        raise call.refused(root)
    return call.run([_sizes(own)], own)


def _scatter(call: _Call) -> Any:
    root = call.rank_of("src")
    root = 0 if root is None else root
    place = call.ranks.index(call.own)
    channel = call.channel(root)
    if root == call.own:
        pickles = [pickle.dumps(item) for item in call.arguments["scatter_object_input_list"] or ()]
        if call.peers is not None:
            call.peers.send(channel, pickle.dumps(pickles))
        return call.run(objects=pickles[place : place + 1])
    if call.peers is None or root not in call.peers.known:
        raise call.refused(root)
    pickles = call.from_rank(root, channel)
    sizes = _sizes(pickles)
    return call.run([[max(sizes)], [sizes[place]]], [pickles[place]])


def _all_gather(call: _Call) -> Any:
    pickles = _gathered(call)
    return call.run([_sizes(pickles)], pickles)


def _gather(call: _Call) -> Any:
    root = call.rank_of("dst")
    pickles = _gathered(call, 0 if root is None else root)
    return call.run([_sizes(pickles)], pickles)


def _gathered(call: _Call, root: int | None = None) -> list[bytes]:
    """The objects of each rank of the group; those that do not run have those of this one."""
    own = pickle.dumps(call.arguments["obj"])
    if call.peers is None:
        return [own] * len(call.ranks)
    call.peers.send(call.channel(call.own), own)
    pickles: list[bytes] = []
    for rank in call.ranks:
        channel = call.channel(rank)
        number = call.peers.claim(channel)
        if rank in call.peers.beside and root in (None, call.own):
            pickles.append(call.peers.receive(channel, number, rank, call.name))
        else:
            pickles.append(own)
    return pickles
