"""The state of a private pool kept and set again: which blocks are there afterwards."""

import pytest
from support.spied_allocator import BASE, MB, allocator, current

from pytorch_memlab.simulation.allocator.checkpoints import (
    checkpoint_state,
    live_allocations,
    set_checkpoint_state,
)

POOL = (1, 0)


def blocks(made):
    return [
        [(part["size"], part["state"]) for part in one["blocks"]]
        for one in made.segments()
        if one["segment_pool_id"] == POOL
    ]


def test_the_blocks_of_a_state_are_allocated_again():
    made = allocator()
    first, second, third = (made.malloc(size, pool_id=POOL) for size in (512, 1024, 3 * MB))
    made.free(second)
    state = checkpoint_state(made, POOL)
    before = blocks(made)
    assert before == [
        [(512, "active_allocated"), (2 * MB - 512, "inactive")],
        [(3 * MB, "active_allocated"), (17 * MB, "inactive")],
    ]
    made.free(first)
    later = [made.malloc(size, pool_id=POOL) for size in (2048, 20 * MB)]
    delta = set_checkpoint_state(made, state)
    assert delta.freed == [third, *later]
    assert delta.allocated == [first, third]
    assert blocks(made) == [*before, [(20 * MB, "inactive")]]
    assert live_allocations(made, POOL) == {first, third}
    # Requested sizes are those of the blocks, which is all that a state holds.
    assert current(made, "requested_bytes") == 512 + 3 * MB
    for address in (first, third):
        made.free(address)
    assert current(made, "active_bytes") == 0


def test_blocks_between_free_ones_keep_their_places():
    made = allocator()
    addresses = [made.malloc(512, pool_id=POOL) for _ in range(11)]
    for index, address in enumerate(addresses):
        if index not in (5, 8):
            made.free(address)
    state = checkpoint_state(made, POOL)
    before = blocks(made)
    for address in (addresses[5], addresses[8]):
        made.free(address)
    assert blocks(made) == [[(2 * MB, "inactive")]]
    assert set_checkpoint_state(made, state).allocated == [addresses[5], addresses[8]]
    assert blocks(made) == before
    assert [size for size, _ in before[0]] == [2560, 512, 1024, 512, 2 * MB - 4608]
    assert current(made, "inactive_split") == 3


def test_a_state_of_a_segment_that_expands():
    made = allocator("expandable_segments:True")
    first = made.malloc(4 * MB, pool_id=POOL)
    second = made.malloc(6 * MB, pool_id=POOL)
    made.free(first)
    state = checkpoint_state(made, POOL)
    before = blocks(made)
    made.free(second)
    assert set_checkpoint_state(made, state).allocated == [second]
    assert blocks(made) == before


def test_pages_that_came_later_do_not_fit_the_state():
    made = allocator("expandable_segments:True")
    made.malloc(4 * MB, pool_id=POOL)
    state = checkpoint_state(made, POOL)
    made.malloc(30 * MB, pool_id=POOL)
    with pytest.raises(RuntimeError, match="not those of the checkpointed state"):
        set_checkpoint_state(made, state)


def test_a_pool_that_is_gone_has_no_state():
    made = allocator()
    with pytest.raises(RuntimeError, match="Could not find pool of id"):
        checkpoint_state(made, POOL)
    made.malloc(512, pool_id=POOL)
    state = checkpoint_state(made, POOL)
    made.private.release(POOL)
    for call in (lambda: checkpoint_state(made, POOL), lambda: set_checkpoint_state(made, state)):
        with pytest.raises(RuntimeError, match="Not expected to checkpoint freeable graph"):
            call()
    assert live_allocations(made, POOL) == {BASE}


def test_a_segment_that_is_gone_is_named():
    made = allocator()
    address = made.malloc(512, pool_id=POOL)
    state = checkpoint_state(made, POOL)
    made.free(address)
    made.private.release(POOL)
    made.empty_cache(POOL)
    made.malloc(512)  # takes its place
    made.malloc(3 * MB, pool_id=POOL)
    with pytest.raises(RuntimeError, match="could not find 0x"):
        set_checkpoint_state(made, state)


def test_frees_of_a_capture_are_waited_for_before_the_state_is_taken():
    made = allocator()
    made.private.begin(POOL, {7}.__contains__)
    made.captures = 1
    address = made.malloc(512, 7)
    made.record_stream(address, 8)
    made.free(address)
    made.private.end(POOL)
    made.captures = 0
    checkpoint_state(made, POOL)
    assert blocks(made) == [[(2 * MB, "inactive")]]
