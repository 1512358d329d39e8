"""The memory of NCCL, by the sizes in its sources."""

from __future__ import annotations

import pytest

from pytorch_memlab.simulation.hardware.nccl_memory import Bounds, Communicator, nccl_memory
from pytorch_memlab.simulation.hardware.presets import find_gpu

MIB = 2**20
A100, H100, T4 = find_gpu("a100"), find_gpu("h100"), find_gpu("t4")
B200, RTX5090 = find_gpu("b200"), find_gpu("rtx5090")


def mib(gpu, *communicators, **environment):
    """The bounds in MiB."""
    memory = nccl_memory(gpu, communicators, environment)
    return memory.low / MIB, memory.estimate / MIB, memory.high / MIB


def test_a_connection_has_the_buffers_of_all_protocols():
    # 512 KiB, 4.6875 MiB and 4 MiB with a header: 10 MiB of the receiver, 2 of the sender.
    # 24 channels each way with one peer, at most 32.
    assert mib(A100, Communicator(2)) == (2, 2 + 24 * 12, 2 + 32 * 12)


def test_the_tree_connects_both_neighbours_both_ways():
    assert mib(A100, Communicator(4)) == (2, 2 + 24 * 12, 2 + 32 * 24)


def test_without_nvlink_two_channels_are_usual():
    assert mib(T4, Communicator(2)) == (2, 2 + 2 * 12, 2 + 32 * 12)


def test_nvswitch_computes_in_buffers_for_all_ranks_of_a_node():
    # 16 channels with 2 buffers of 8 steps of 128 KiB for each of 8 ranks
    assert mib(H100, Communicator(8)) == (2, 2 + 24 * 12 + 256, 2 + 32 * 24 + 256)
    assert mib(H100, Communicator(64, per_node=4))[1] == 2 + 24 * 12 + 128


def test_two_ranks_and_gpus_without_nvlink_may_use_nvswitch_and_usually_do_not():
    assert mib(H100, Communicator(2)) == (2, 2 + 24 * 12, 2 + 32 * 12 + 64)
    # 32 channels with 2 buffers of 8 steps of 256 KiB for each of 4 ranks
    assert mib(RTX5090, Communicator(4)) == (2, 2 + 2 * 12, 2 + 64 * 24 + 512)


def test_from_blackwell_on_there_are_at_most_64_channels():
    # 32 channels with 2 buffers of 8 steps of 256 KiB for each of 8 ranks
    assert mib(B200, Communicator(8)) == (2, 2 + 24 * 12 + 1024, 2 + 64 * 24 + 1024)


def test_switched_off_it_takes_nothing():
    assert mib(H100, Communicator(8), NCCL_NVLS_ENABLE="0") == mib(A100, Communicator(8))


def test_each_peer_that_a_rank_sends_to_has_its_own_channels():
    pipeline = Communicator(8, has_collectives=False, peers=2)
    assert mib(A100, pipeline) == (2, 2 + 2 * 32 * 12, 2 + 2 * 32 * 12)
    of_two_nodes = Communicator(16, has_collectives=False, peers=2)
    assert mib(A100, of_two_nodes)[1] == 2 + 2 * 2 * 12


def test_the_environment_sets_sizes_and_channels():
    # 1 MiB instead of 4: the receiver has 6.1875 MiB and the header, so 8 MiB.
    assert mib(A100, Communicator(2), NCCL_BUFFSIZE="1048576")[1] == 2 + 24 * 10
    assert mib(A100, Communicator(2), NCCL_MAX_NCHANNELS="4") == (2, 2 + 4 * 12, 2 + 4 * 12)
    assert mib(T4, Communicator(2), NCCL_MIN_NCHANNELS="8")[1] == 2 + 8 * 12


@pytest.mark.parametrize("value", ["", "many", "-3", "0"])
def test_no_number_is_no_setting(value):
    assert mib(A100, Communicator(2), NCCL_BUFFSIZE=value) == mib(A100, Communicator(2))


def test_communicators_add_up_and_one_rank_alone_needs_none():
    assert nccl_memory(A100, [Communicator(1)], {}) == Bounds(0, 0, 0)
    one, two = mib(A100, Communicator(2)), mib(A100, Communicator(2), Communicator(2))
    assert two == tuple(2 * size for size in one)
