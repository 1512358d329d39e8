# gpu: 168MiB
# cause: fragmentation
import torch
import torch.nn.functional as F

thumbnails = []
for size in range(256, 720, 20):
    images = torch.rand(8, 3, size, size, device="cuda")
    smooth = F.avg_pool2d(images, 3, stride=1, padding=1)
    thumbnails.append(F.interpolate(smooth, size=(128, 128)))
    del images, smooth
print(len(thumbnails))
