from pytorch_memlab.simulation.allocator.driver import RecordedDriver, SimulatedDriver, Step

MB = 2**20
BASE = 0x7000_0000_0000


def test_the_lowest_addresses_come_first_and_again():
    driver = SimulatedDriver(100 * MB)
    a, b, c = driver.malloc(4 * MB), driver.malloc(2 * MB), driver.malloc(6 * MB)
    assert (a, b, c) == (BASE, BASE + 4 * MB, BASE + 6 * MB)
    driver.free(a)
    driver.free(b)
    assert driver.malloc(8 * MB) == BASE + 12 * MB
    assert driver.malloc(6 * MB) == a
    driver.free(BASE + 12 * MB)
    assert driver.malloc(10 * MB) == BASE + 12 * MB


def test_memory_is_taken_by_pages():
    driver = SimulatedDriver(10 * MB, context=3 * MB)
    assert driver.malloc(5) is not None
    assert driver.free_memory() == 5 * MB
    assert driver.process_memory == 5 * MB
    assert driver.malloc(6 * MB) is None
    assert driver.malloc(4 * MB) is not None


def test_a_card_filled_by_others_has_nothing_free():
    driver = SimulatedDriver(10 * MB, context=20 * MB)
    assert driver.free_memory() == 0
    assert driver.malloc(1) is None


def test_addresses_can_be_reserved_without_memory():
    driver = SimulatedDriver(10 * MB)
    address = driver.reserve(1000 * MB)
    assert driver.free_memory() == 10 * MB
    assert driver.map(address, 8 * MB)
    assert not driver.map(address + 8 * MB, 4 * MB)
    driver.unmap(address, 8 * MB)
    driver.release(address, 1000 * MB)
    assert driver.free_memory() == 10 * MB
    assert driver.reserve(5 * MB) == address


def test_a_recount_finds_the_gaps_between_segments_in_any_order():
    driver = SimulatedDriver(100 * MB)
    first, second, third = driver.malloc(4 * MB), driver.malloc(3 * MB), driver.malloc(6 * MB)
    driver.free(second)
    # Of a segment that it does not know, 5 bytes take a page.
    driver.recount({third: 6 * MB, first: 4 * MB, second: 5}, {}, 8 * MB)

    assert driver.free_memory() == 100 * MB - (6 + 4 + 2 + 8) * MB
    assert [driver.malloc(2 * MB) for _ in range(2)] == [BASE + 6 * MB, BASE + 14 * MB]


def test_cards_can_have_addresses_of_their_own():
    assert SimulatedDriver(10 * MB, base=BASE + 2**44).malloc(5) == BASE + 2**44


def test_a_recording_hands_its_addresses_out_and_notes_what_it_has_not():
    driver = RecordedDriver()
    driver.expected.append(Step(0, 77, 2 * MB))
    assert driver.malloc(2 * MB) == 77
    assert driver.mismatches == []
    assert driver.malloc(4 * MB) != driver.malloc(4 * MB)
    assert driver.mismatches == ["a segment of 4194304 bytes that was not recorded"] * 2
    assert driver.call_counts.mallocs == 3


def test_a_recordings_addresses_that_were_given_back_are_reserved_again():
    driver = RecordedDriver()
    driver.mapped = [77]
    assert driver.reserve(4 * MB) == 77
    assert driver.reserve(4 * MB) != 77
    driver.release(77, 4 * MB)
    assert driver.reserve(4 * MB) == 77
