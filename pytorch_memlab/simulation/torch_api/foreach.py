"""``torch.utils._foreach_utils`` under simulation: lists of tensors are sorted by GPU too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..machine import HOST

if TYPE_CHECKING:
    from ..machine import Machine
    from ..patches import Patches

Groups = dict[tuple[torch.device, torch.dtype], tuple[list[list[Any]], list[int]]]
_NAME = "_group_tensors_by_device_and_dtype"


def install(machine: Machine, patches: Patches) -> None:
    """Sort tensors of optimizers and gradient clipping by the devices that they live on.

    Args:
        machine: the simulated machine.
        patches: who puts the original back.
    """
    group_on_cpu = getattr(torch._C, _NAME)

    def group(tensors: list[list[Any]], with_indices: bool = False) -> Groups:
        groups: Groups = {}
        for (device, dtype), (lists, indices) in group_on_cpu(tensors, True).items():
            for position, index in enumerate(indices):
                place = machine.place_of(lists[0][position])
                where = device if place == HOST else machine.gpus[place].device
                parts, kept = groups.setdefault((where, dtype), ([[] for _ in lists], []))
                for part, one in zip(parts, lists, strict=True):
                    part.extend(one[position : position + 1])
                if with_indices:
                    kept.append(index)
        return groups

    patches.set(torch._C, _NAME, group)
