"""``torch.utils._foreach_utils`` under simulation: lists of tensors are sorted by GPU too."""

from __future__ import annotations

from typing import Any

import torch

from ..._common.patches import Patches
from ..machine.machine import Machine

Groups = dict[tuple[torch.device, torch.dtype], tuple[list[list[Any]], list[int]]]
_NAME = "_group_tensors_by_device_and_dtype"


def install(machine: Machine, patches: Patches) -> None:
    """Sort tensors of optimizers and gradient clipping by the devices that they live on."""
    group_on_cpu = getattr(torch._C, _NAME)

    def group(tensors: list[list[Any]], with_indices: bool = False) -> Groups:
        groups: Groups = {}
        for (device, dtype), (lists, indices) in group_on_cpu(tensors, True).items():
            gpus = [machine.gpu_of(tensor) for tensor in lists[0]]
            devices = [device if gpu is None else gpu.device for gpu in gpus]
            if len(set(devices)) == 1 and (devices[0], dtype) not in groups:
                groups[devices[0], dtype] = lists, indices if with_indices else []
                continue
            for position, (its_device, index) in enumerate(zip(devices, indices, strict=True)):
                key = its_device, dtype
                parts, kept = groups.setdefault(key, ([[] for _ in lists], []))
                for part, one in zip(parts, lists, strict=True):
                    part.extend(one[position : position + 1])
                if with_indices:
                    kept.append(index)
        return groups

    patches.set(torch._C, _NAME, group)
