"""Memory that NCCL takes of a GPU, of which PyTorch's allocator has none.

Note [Buffers of NCCL]
Files and functions are those of NCCL 2.30.

``computeBuffSizes`` in ``src/init.cc`` gives each protocol a buffer: 512 KiB for LL, 4.69 MiB for
LL128, 4 MiB for Simple, or what ``NCCL_LL_BUFFSIZE``, ``NCCL_LL128_BUFFSIZE`` and ``NCCL_BUFFSIZE``
say. A rank that is connected to a peer has these buffers once on each channel.
``p2pSendSetup`` and ``p2pRecvSetup`` in ``src/transport/p2p.cc`` add a small header to the part of
the sender and to that of the receiver, and round both up to ``CUDA_IPC_MIN``, 2 MiB. Whether the
sender or the receiver has the Simple buffer makes no difference to a rank that does both.

A collective connects a ring, in which a rank sends to one peer and receives from one. With the
tree, inside a node a chain, it does both with both neighbours (``ncclTransportTreeConnect`` in
``src/transport/generic.cc``). ``send``, ``recv`` and ``all_to_all`` connect each peer on channels
of their own connection (``ncclTopoComputeP2pChannels`` in ``src/graph/paths.cc``). From compute
capability 9.0 on, collectives through NVSwitch have two buffers of eight steps of
``NCCL_NVLS_CHUNKSIZE`` for each channel and rank of the node (``ncclNvlsBufferSetup`` in
``src/transport/nvls.cc``).

How many channels there are depends on the links between the GPUs, which a simulation does not have.
``ncclTopoPostset`` in ``src/graph/connect.cc`` doubles the channels that a search finds: so there
are 2 at least. Logs that users published show 2 without NVLink (nccl-tests#228), and 24 of eight
A100 (nccl-tests#100) and of eight H100 (nccl#1259). ``MAXCHANNELS`` was 32 until NCCL 2.20, which
these logs do not reach, and is 64 now. So 32 are taken as the upper bound up to compute capability
9.0. For ``send`` and ``recv`` a log of eight H800 shows as many channels for each peer as for
collectives (nccl#892), and one of two nodes 2 of them (nccl#1189).

Between GPUs without peer access, and between nodes without GPUDirect RDMA, the buffers are in
memory of the host: the lower bound has none of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from .gpu import GPU

_MIB: Final = 2**20
_STEPS: Final = 8  # NCCL_STEPS
_GRANULE: Final = 2 * _MIB  # CUDA_IPC_MIN, and the granularity of memory that the driver maps
_HEADER: Final = 4096  # more than sizeof(ncclSendMem) and sizeof(ncclRecvMem)

_BUFFERS: Final = {
    # 8 lines for each of 512 threads, of 16 bytes
    "NCCL_LL_BUFFSIZE": 8 * 512 * _STEPS * 16,
    # 120 elements for each of 640 threads, of 8 bytes
    "NCCL_LL128_BUFFSIZE": 120 * 640 * _STEPS * 8,
    "NCCL_BUFFSIZE": 4 * _MIB,
}
_SIMPLE: Final = "NCCL_BUFFSIZE"

_WITH_NVLINK: Final = ((8, 0), (9, 0), (10, 0), (10, 3))
"""Compute capabilities of GPUs that servers have with NVLink between all of them."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """An estimate in bytes, and the least and the most that it can be."""

    low: int = 0
    estimate: int = 0
    high: int = 0

    def __add__(self, other: Bounds) -> Bounds:
        return Bounds(self.low + other.low, self.estimate + other.estimate, self.high + other.high)


@dataclass(frozen=True, slots=True)
class Communicator:
    """The facts that decide the memory of a communicator of NCCL on one GPU.

    Args:
        size: the number of its ranks.
        has_collectives: whether it ran one, such as an all-reduce.
        peers: with how many other ranks it exchanged tensors, by ``send``, ``recv`` or
            ``all_to_all``.
        per_node: the most of its ranks that one node has.
    """

    size: int
    has_collectives: bool = True
    peers: int = 0
    per_node: int = 8


def nccl_memory(
    gpu: GPU,
    communicators: Iterable[Communicator],
    environment: Mapping[str, str] = os.environ,
) -> Bounds:
    """The memory that the communicators of one rank take of its GPU."""
    memory = Bounds()
    for communicator in communicators:
        memory += _of_one(gpu, communicator, environment)
    return memory


def _of_one(gpu: GPU, communicator: Communicator, environment: Mapping[str, str]) -> Bounds:
    if communicator.size < 2:
        return Bounds()
    local = min(communicator.size, communicator.per_node)
    usual, most = _channels(gpu, environment)
    per_connection = _connection(environment)
    # A ring has one connection each way; with a tree there are two each way of three ranks or more.
    both_ways = 1 if communicator.size == 2 else 2
    estimate = high = _GRANULE  # the communicator itself (devCommSetup in src/init.cc)
    if communicator.has_collectives:
        sharp = _through_nvswitch(gpu, local, environment)
        estimate += usual * per_connection + (sharp if local > 2 and usual > 2 else 0)
        high += most * both_ways * per_connection + sharp
    # Each peer has at most all channels, whose number is then a power of 2.
    for_peer = _power_of_2(usual) if local == communicator.size else 2
    estimate += communicator.peers * for_peer * per_connection
    high += communicator.peers * _power_of_2(most) * per_connection
    return Bounds(_GRANULE, estimate, high)


def _channels(gpu: GPU, environment: Mapping[str, str]) -> tuple[int, int]:
    """The usual number of channels, and the most."""
    capability = (gpu.major, gpu.minor)
    most = 64 if capability >= (10, 0) else 32
    usual = 24 if capability in _WITH_NVLINK else 2
    limit = min(
        _number(environment, name, most) for name in ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS")
    )
    least = max(_number(environment, name, 1) for name in ("NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS"))
    return max(min(usual, limit), least), max(min(most, limit), least)


def _connection(environment: Mapping[str, str]) -> int:
    """Bytes of what a rank sends on one channel and of what it receives on one."""
    sizes = {name: _number(environment, name, size) for name, size in _BUFFERS.items()}
    received = sum(sizes.values())
    as_write = _rounded(_HEADER) + _rounded(_HEADER + received)
    simple = sizes[_SIMPLE]
    as_read = _rounded(_HEADER + simple) + _rounded(_HEADER + received - simple)
    return max(as_write, as_read)


def _through_nvswitch(gpu: GPU, local: int, environment: Mapping[str, str]) -> int:
    """Bytes of the buffers for collectives that NVSwitch computes; 0 without them."""
    if (gpu.major, gpu.minor) < (9, 0) or environment.get("NCCL_NVLS_ENABLE") == "0":
        return 0
    channels, chunk = (32, 256 * 1024) if (gpu.major, gpu.minor) >= (10, 0) else (16, 128 * 1024)
    channels = _number(environment, "NCCL_NVLS_NCHANNELS", channels)
    chunk = _number(environment, "NCCL_NVLS_CHUNKSIZE", chunk)
    return _rounded(channels * 2 * chunk * _STEPS * local)


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    """A setting of NCCL, which ignores what is no positive number."""
    with suppress(KeyError, ValueError):
        number = int(environment[name], 0)
        if number > 0:
            return number
    return default


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _GRANULE) * _GRANULE


def _power_of_2(number: int) -> int:
    return 1 << (number - 1).bit_length()
