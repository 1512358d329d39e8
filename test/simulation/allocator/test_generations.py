"""Generations: the bytes in use that were allocated since a moment, with several readers."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from pytorch_memlab.simulation.allocator.generations import Generation, Generations

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["allocate", "free", "recount", "begin", "from_first", "restart", "end"]),
        st.integers(0, 9),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_each_generation_has_the_blocks_since_it_began(steps: list[tuple[str, int]]) -> None:
    generations = Generations()
    blocks: dict[int, int] = {}  # in use, by number
    began: list[tuple[Generation, int]] = []  # with the number of the last block before
    count = 0
    for step, choice in steps:
        if step == "allocate":
            size = 512 * (choice + 1)
            count = generations.allocated(size)
            blocks[count] = size
        elif step == "free" and blocks:
            number = sorted(blocks)[choice % len(blocks)]
            generations.freed(number, blocks.pop(number))
        elif step == "recount":
            generations.recount([*blocks.items()])
        elif step == "begin":
            began.append((generations.begin(), count))
        elif step == "from_first":
            began.append((generations.begin_from_first_block(), 0))
        elif step in ("restart", "end") and began:
            place = choice % len(began)
            generation, first = began.pop(place)
            size = getattr(generations, step)(generation)
            assert size == sum(nbytes for number, nbytes in blocks.items() if number > first)
            if step == "restart":
                began.append((generation, count))
    for generation, first in began:
        expected = sum(nbytes for number, nbytes in blocks.items() if number > first)
        assert generations.end(generation) == expected
        assert generations.end(generation) == 0
