"""How much of a GPU's memory its CUDA context takes: estimates from published messages.

An out-of-memory message names what the process holds as NVML counts it, what PyTorch has allocated,
and what it has reserved besides. The first less the other two is what no counter of the allocator
shows: the context, the kernels loaded by then, the handles of cuBLAS and cuDNN. It depends on the
driver, the release of PyTorch and the kernels that ran, and the messages round it by some 10 MiB:
these are estimates. Of several messages of one GPU the median counts. Left out are those of
processes with NCCL in them or with CUDA graphs, which hold far more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CONTEXT_MIB: Final[Mapping[str, int]] = {
    # 14.52 GiB - 14.06 GiB - 330.42 MiB: FoundationVision/GenerateU#10.
    # 4.11 GiB - 3.72 GiB - 264.21 MiB: Zheng-Chong/CatVTON#133.
    # 11.32 GiB - 8.40 GiB - 2.80 GiB: AlphaGPU/leetgpu-challenges#52.
    "t4": 135,
    # 14.83 GiB - 14.01 GiB - 472.05 MiB, of 15.77 GiB: log of a training in SageMaker, which names
    # no GPU; this is the V100's capacity under newer drivers.
    "v100": 368,
    # 18.00 GiB - 17.61 GiB - 13.91 MiB, of 31.74 GiB: report on running Sana-4Kpx, which names no
    # GPU; this is the capacity that KernelBench's log of a Tesla V100-SXM2-32GB gives.
    "v100-32gb": 385,
    # An A10, which has the same GA102: 21.91 GiB - 21.69 GiB - 1.55 MiB: zai-org/CogVLM#236.
    "a10g": 224,
    # 20.78 GiB - 18.66 GiB - 1.89 GiB: ArcInstitute/evo2#190.
    "l4": 236,
    # 44.29 GiB - 43.88 GiB - 582 KiB: stepfun-ai/Step-Video-T2V#8. Others with the same AD102 and
    # 142 SMs: 11.13 GiB - 10.25 GiB - 394.50 MiB (L40): QwenLM/Qwen3-VL#2097;
    # 44.40 GiB - 43.94 GiB - 41.95 MiB (RTX 6000 Ada): DINGYANB/MTVCrafter#21.
    "l40s": 429,
    # 20.50 GiB - 20.02 GiB - 187.61 MiB: bytedance/X-Portrait#7.
    "rtx3090": 304,
    # 14.56 GiB - 13.86 GiB - 213.20 MiB: 3DTopia/Phidias-Diffusion#8.
    # 22.80 GiB - 22.10 GiB - 222.14 MiB: pytorch/torchchat#1341.
    # 22.69 GiB - 21.72 GiB - 520.54 MiB: pinokiofactory/flux-webui#11.
    "rtx4090": 495,
    # 31.34 GiB - 30.74 GiB - 19.41 MiB: Wan-Video/Wan2.1#465.
    # 26.89 GiB - 25.95 GiB - 343.86 MiB: TrajectoryCrafter/TrajectoryCrafter#20.
    "rtx5090": 607,
    # 9.25 GiB - 8.27 GiB - 500.38 MiB: lianqi1008/Control-GIC#6.
    # 16.54 GiB - 15.94 GiB - 205.65 MiB: HiDream-ai/VAREdit#6.
    # 14.25 GiB - 12.87 GiB - 912.01 MiB (40 GB): TianheWu/CoSeR#10.
    # A process that does nothing holds 414.00 MiB (40 GB): awslabs/keys_values#92.
    "a100": 501,
    "a100-40gb": 501,
    # 39.75 GiB - 39.13 GiB - 35.42 MiB: a benchmark's reference run of diffusers on one H100.
    # 79.13 GiB - 77.91 GiB - 648.28 MiB (PCIe): notes on a training run.
    # 91.91 GiB - 86.10 GiB - 5.15 GiB (NVL): ali-vilab/VACE#56.
    "h100": 601,
    # 12.62 GiB - 12.10 GiB - 7.55 MiB: sungwon-chae/arxiv_confi, etu_logging.md.
    "h200": 525,
    # 168.34 GiB - 167.64 GiB - 4.62 MiB, of 178.35 GiB: log of a script that runs out of memory on
    # purpose, in a book on training; it names no GPU, and this is a B200's capacity.
    "b200": 712,
}
