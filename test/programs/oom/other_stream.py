# gpu: 256MiB
# cause: other_stream
import torch

MIB = 2**20


def take(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


# fixed: side = torch.cuda.current_stream()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    pairs = [(take(8), take(2)) for _ in range(24)]
    kept = [small for _, small in pairs]
    del pairs
buffers = [take(7) for _ in range(20)]
