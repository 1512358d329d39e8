"""A caching allocator whose driver notes its calls."""

from pytorch_memlab.simulation.allocator.caching_allocator import CachingAllocator
from pytorch_memlab.simulation.allocator.driver import SimulatedDriver
from pytorch_memlab.simulation.allocator.settings import AllocatorSettings

MB = 2**20
BASE = 0x7000_0000_0000
RESERVED = BASE + 2**43


class SpyDriver(SimulatedDriver):
    """Notes what is asked of it, in MB."""

    def __init__(self, total, context=0):
        super().__init__(total, context)
        self.calls = []
        self.sizes = {}

    def malloc(self, size):
        address = super().malloc(size)
        self.calls.append(("malloc" if address else "malloc fails", size // MB))
        self.sizes[address] = size // MB
        return address

    def free(self, address):
        self.calls.append(("free", self.sizes[address]))
        super().free(address)

    def map(self, address, size):
        mapped = super().map(address, size)
        self.calls.append(("map" if mapped else "map fails", size // MB))
        return mapped

    def unmap(self, address, size):
        self.calls.append(("unmap", size // MB))
        super().unmap(address, size)


def allocator(conf="", total_mb=24 * 1024, **options):
    driver = SpyDriver(total_mb * MB)
    made = CachingAllocator(driver, AllocatorSettings.parse(conf), **options)
    made.driver = driver
    return made


def current(made, group, pool="all"):
    return made.memory_stats()[group][pool]["current"]


def stat(current, peak, allocated, freed):
    return {"current": current, "peak": peak, "allocated": allocated, "freed": freed}


def pools(everything, small, large):
    return {"all": stat(*everything), "small_pool": stat(*small), "large_pool": stat(*large)}


NONE = (0, 0, 0, 0)
