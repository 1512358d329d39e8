# gpu: 256MiB
# settings: expandable_segments:True
# cause: fragmentation
import torch

MIB = 2**20


def take(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


large = [take(60) for _ in range(4)]
del large
kept = [take(31) for _ in range(4)]
result = take(64)
