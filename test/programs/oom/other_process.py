# gpu: 1GiB
# others: 700MiB
# fixed others: 0
# cause: other_process
import torch

weights = torch.empty(200 * 2**20, dtype=torch.uint8, device="cuda")
result = torch.empty(200 * 2**20, dtype=torch.uint8, device="cuda")
