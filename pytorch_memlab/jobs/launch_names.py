"""The names of launchers, as commands and as modules."""

from __future__ import annotations

import os
from typing import Final

COMMANDS: Final = frozenset(
    {
        *("torchrun", "accelerate", "accelerate-launch", "deepspeed"),
        *("srun", "mpirun", "mpiexec", "mpiexec.hydra"),
    }
)
MODULES: Final = frozenset(
    {
        *("torch.distributed.run", "torch.distributed.launch"),
        *("accelerate.commands.launch", "accelerate.commands.accelerate_cli"),
        *("deepspeed.launcher.runner", "deepspeed.launcher.launch"),
    }
)


def is_launcher(target: str, *, is_module: bool) -> bool:
    """True if a command or a module starts the ranks of a job."""
    if is_module:
        return target in MODULES
    name = os.path.basename(target)
    return name in COMMANDS and (name == target or os.path.isfile(target))
