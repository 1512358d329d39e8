# gpu: 256MiB
# cause: too_large
import torch

points = torch.randn(16384, 3, device="cuda")
# fixed: nearest = [torch.cdist(part, points).min(-1) for part in points.chunk(16)]
nearest = torch.cdist(points, points).min(-1)
