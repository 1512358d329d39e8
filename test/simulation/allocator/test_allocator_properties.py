"""Properties that the allocator has for any requests and settings."""

from hypothesis import settings as hypothesis_settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pytorch_memlab.simulation.allocator.caching_allocator import CachingAllocator
from pytorch_memlab.simulation.allocator.driver import SimulatedDriver
from pytorch_memlab.simulation.allocator.out_of_memory import DeviceOutOfMemoryError
from pytorch_memlab.simulation.allocator.settings import AllocatorSettings
from pytorch_memlab.simulation.allocator.stats import GROUPS

MB = 2**20
CARD = 200 * MB
STREAMS = st.integers(0, 2)
SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(1, 2 * MB),
    st.integers(MB, 24 * MB),
    st.sampled_from([MB, MB + 1, 10 * MB - 1, 10 * MB, 20 * MB, 60 * MB, 150 * MB]),
)
CONFS = st.builds(
    lambda *parts: ",".join(filter(None, parts)),
    st.sampled_from(["", "large_segment_size_mb:12", "large_segment_size_mb:32"]),
    st.sampled_from(["", "max_split_size_mb:32", "max_split_size_mb:48"]),
    st.sampled_from(["", "max_non_split_rounding_mb:40"]),
    st.sampled_from(["", "roundup_power2_divisions:4", "roundup_power2_divisions:[4:2,16:8,>:1]"]),
    st.sampled_from(["", "garbage_collection_threshold:0.5"]),
    st.sampled_from(["", "expandable_segments:True"]),
    st.sampled_from(["", "per_process_memory_fraction:0.7", "throw_on_cudamalloc_oom:True"]),
)


def recount(segments):
    """The current values that the counters should have, from a snapshot."""
    count = {(group, pool): 0 for group in GROUPS for pool in ("small", "large")}
    for segment in segments:
        pool, expandable = segment["segment_type"], segment["is_expandable"]
        count["reserved_bytes", pool] += segment["total_size"]
        count["segment", pool] += not expandable
        for block in segment["blocks"]:
            size, state = block["size"], block["state"]
            if state == "active_allocated":
                count["allocation", pool] += 1
                count["allocated_bytes", pool] += size
            if state != "inactive":
                count["active", pool] += 1
                count["active_bytes", pool] += size
                count["requested_bytes", pool] += block["requested_size"]
            elif len(segment["blocks"]) > 1 and not expandable:
                count["inactive_split", pool] += 1
                count["inactive_split_bytes", pool] += size
    return count


class DefaultSettings(RuleBasedStateMachine):
    conf = st.just("")

    @initialize(data=st.data(), by_address=st.booleans())
    def begin(self, data, by_address):
        self.driver = SimulatedDriver(CARD)
        self.settings = AllocatorSettings.parse(data.draw(self.conf))
        self.allocator = CachingAllocator(self.driver, self.settings, order_by_address=by_address)
        self.live = {}
        self.requests = 0

    @rule(size=SIZES, stream=STREAMS)
    def malloc(self, size, stream):
        ooms = self.failures()
        try:
            address = self.allocator.malloc(size, stream)
        except DeviceOutOfMemoryError:
            assert self.failures() == ooms + 1
        else:
            assert self.failures() == ooms
            assert address not in self.live
            assert address % 512 == 0
            self.live[address] = (size, stream)
            self.requests += 1

    @rule(data=st.data())
    def free(self, data):
        if self.live:
            address = data.draw(st.sampled_from(sorted(self.live)))
            self.allocator.free(address)
            del self.live[address]

    @rule(data=st.data(), stream=STREAMS)
    def record_stream(self, data, stream):
        if self.live:
            self.allocator.record_stream(data.draw(st.sampled_from(sorted(self.live))), stream)

    @rule(stream=STREAMS)
    def hold_stream(self, stream):
        self.allocator.work.sleep(stream)

    @rule(stream=st.one_of(st.none(), STREAMS))
    def synchronize(self, stream):
        self.allocator.work.finish(stream)

    @rule()
    def empty_cache(self):
        self.allocator.empty_cache()
        for segment in self.allocator.snapshot():
            assert segment["is_expandable"] or segment["active_size"]

    @rule()
    def reset_peaks(self):
        self.allocator.reset_peak_stats()
        for stat in self.stats_by_path().values():
            assert stat["peak"] == stat["current"]

    @rule()
    def put_peaks_back(self):
        before = self.allocator.memory_stats()
        self.allocator.reset_peak_stats()
        self.allocator.restore_peaks(before)
        assert self.allocator.memory_stats() == before

    @invariant()
    def blocks_tile_their_segments(self):
        end = 0
        for segment in self.allocator.snapshot():
            assert segment["address"] >= end
            end = segment["address"]
            before = "active_allocated"
            for block in segment["blocks"]:
                assert block["address"] == end
                assert block["size"] > 0
                assert (before, block["state"]) != ("inactive", "inactive")  # would be joined
                end += block["size"]
                before = block["state"]
            assert end == segment["address"] + segment["total_size"]

    @invariant()
    def what_was_handed_out_is_there(self):
        blocks = {
            block["address"]: (block["size"], block["requested_size"], segment)
            for segment in self.allocator.snapshot()
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        }
        assert blocks.keys() == self.live.keys()
        for address, (size, stream) in self.live.items():
            block_size, requested, segment = blocks[address]
            rounded = self.settings.round_size(size)
            assert requested == size <= rounded <= block_size
            assert segment["stream"] == stream
            assert segment["segment_type"] == ("small" if rounded <= MB else "large")

    @invariant()
    def counters_equal_a_recount(self):
        stats = self.allocator.memory_stats()
        for (group, pool), value in recount(self.allocator.snapshot()).items():
            assert stats[group][f"{pool}_pool"]["current"] == value, (group, pool)
        for group in GROUPS:
            small, large, everything = (
                stats[group][pool] for pool in ("small_pool", "large_pool", "all")
            )
            for metric in ("current", "allocated", "freed"):
                assert everything[metric] == small[metric] + large[metric]
            assert everything["peak"] <= small["peak"] + large["peak"]
            assert everything["peak"] >= max(small["peak"], large["peak"])
        for stat in self.stats_by_path().values():
            assert stat["current"] == stat["allocated"] - stat["freed"]
            assert 0 <= stat["current"] <= stat["peak"]
        assert stats["allocation"]["all"]["allocated"] == self.requests

    @invariant()
    def the_card_agrees(self):
        reserved = self.allocator.memory_stats()["reserved_bytes"]["all"]["current"]
        assert reserved == CARD - self.driver.free_memory()
        assert reserved <= CARD * self.settings.per_process_memory_fraction or (
            self.settings.expandable_segments  # only 2 MiB or a page is held against the limit
        )

    def teardown(self):
        if hasattr(self, "allocator"):
            for address in self.live:
                self.allocator.free(address)
            self.allocator.empty_cache()
            assert self.allocator.snapshot() == []
            assert self.driver.free_memory() == CARD
            for path, stat in self.stats_by_path().items():
                assert stat["current"] == 0, path

    def stats_by_path(self):
        stats = self.allocator.memory_stats()
        nested = {(g, pool): stats[g][pool] for g in GROUPS for pool in stats[g]}
        flat = ("oversize_allocations", "oversize_segments")
        return nested | {(name,): stats[name] for name in flat}

    def failures(self):
        stats = self.allocator.memory_stats()
        return stats["num_ooms"] + stats["num_oom_rejections"]


class AnySettings(DefaultSettings):
    conf = CONFS


class ExpandableSegments(DefaultSettings):
    conf = CONFS.map(lambda conf: f"{conf},expandable_segments:True".removeprefix(","))


QUICK = hypothesis_settings(max_examples=30, stateful_step_count=40, deadline=None)

TestDefaultSettings = DefaultSettings.TestCase
TestDefaultSettings.settings = QUICK
TestAnySettings = AnySettings.TestCase
TestAnySettings.settings = QUICK
TestExpandableSegments = ExpandableSegments.TestCase
TestExpandableSegments.settings = QUICK
