# gpu: 170MiB
# cause: fragmentation
import torch


def windows(signal, length):
    return signal.unfold(0, length, 64).contiguous()


signal = torch.randn(2**18, device="cuda")
kept = {}
with torch.inference_mode():
    for length in range(512, 2600, 96):
        frames = windows(signal, length)
        spectrum = torch.fft.rfft(frames).abs()
        kept[length] = spectrum[:800, :500].clone()
        del frames, spectrum
print(sorted(kept))
