# gpu: 1GiB
# cause: memory_fraction
import torch

# fixed: torch.cuda.set_per_process_memory_fraction(0.38, 0)
torch.cuda.set_per_process_memory_fraction(0.25, 0)
kept = [torch.empty(100 * 2**20, dtype=torch.uint8, device="cuda") for _ in range(2)]
result = torch.empty(150 * 2**20, dtype=torch.uint8, device="cuda")
