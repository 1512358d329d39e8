"""Parameters, gradients and optimizer state in shards on several GPUs (``fully_shard``)."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import Optimizer

from ...errors import UsageError
from ...simulation.patches import Patches
from ...tensors.living import living
from .model_variable import model_variable
from .program_lines import after_imports, before_statement, user_lines
from .remedy import Edit, Finding, Remedy, already_used, applied, does_not_apply
from .repeated_blocks import in_code, repeated_blocks

_FIRST = (
    "import os",
    "import torch",
    'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
    'torch.distributed.init_process_group("nccl")',
)
"""What each process does before anything else."""


class Sharding(Remedy):
    """The model is sharded when its optimizer is made, and this process is one of the ranks.

    Args:
        ranks: how many GPUs share the model.
    """

    def __init__(self, ranks: str = "8") -> None:
        if not ranks.isdecimal() or int(ranks) < 2:
            raise UsageError(f"shard=N takes a number of GPUs from 2 on, not {ranks}")
        self.ranks = int(ranks)
        self.name = f"shard={self.ranks}"
        self.what_it_changes = f"needs {self.ranks} GPUs, each with a batch of its own"
        self._before = os.environ.get("WORLD_SIZE", "1")

    def environment(self) -> Mapping[str, str]:
        """What ``torchrun`` sets for the first of the processes."""
        return {
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_WORLD_SIZE": str(self.ranks),
            "RANK": "0",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "29500",
        }

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Shard each model before its first optimizer is made."""
        self._edits: list[Edit | None] = []
        self._code: list[str] = []
        self._of_program = ""
        patches = Patches()
        try:
            patches.set(Optimizer, "__init__", self._sharding(Optimizer.__init__))
            yield
        finally:
            patches.undo()

    def finding(self) -> Finding:
        """Whether a model was sharded."""
        if self._before != "1":
            return already_used(f"the program is one of {self._before} ranks")
        if self._of_program:
            return does_not_apply(self._of_program)
        if not self._code:
            return does_not_apply("no optimizer has the parameters of a module")
        code = [f"# torchrun --nproc-per-node {self.ranks} ...", *_FIRST, *self._code]
        main = getattr(sys.modules["__main__"], "__file__", None) or ""
        return applied(code, [after_imports(main, _FIRST), *self._edits])

    def _sharding(self, original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def init(optimizer: Any, params: Any, defaults: Any) -> None:
            groups = list(params)
            models = _models_of(_parameters(groups))
            sharded: dict[int, nn.Parameter] = {}
            for model in models:
                sharded.update(self._shard(model))
            original(optimizer, [_with(group, sharded) for group in groups], defaults)

        return init

    def _shard(self, model: nn.Module) -> dict[int, nn.Parameter]:
        """Shard a model.

        Returns:
            Its parameters by the ``id`` of those that they replace.
        """
        if isinstance(model, nn.parallel.DistributedDataParallel):
            self._of_program = "the model is in DistributedDataParallel"
        elif any(type(each).__name__.startswith("FSDP") for each in model.modules()):
            self._of_program = "the program shards the model"
        if self._of_program:
            return {}
        if not dist.is_initialized():
            dist.init_process_group("nccl")
        fully_shard = _fully_shard()
        before = dict(model.named_parameters())
        blocks = repeated_blocks(model)
        variable, lines = model_variable(model), user_lines()
        code = ["from torch.distributed.fsdp import fully_shard"]
        if blocks:
            paths = [path for path, _ in blocks]
            code.append(f"for block in {in_code(model, variable.name, paths)}:")
            code.append("    fully_shard(block)")
        code.append(f"fully_shard({variable.name})")
        self._code += code
        self._edits.append(before_statement(lines[0], code) if lines else None)
        for _, block in blocks:
            fully_shard(block)
        fully_shard(model)
        after = dict(model.named_parameters())
        return {id(parameter): after[name] for name, parameter in before.items()}


def _fully_shard() -> Callable[[nn.Module], object]:
    """The function, from where torch 2.4 and 2.5 have it too."""
    try:
        module = importlib.import_module("torch.distributed.fsdp")
        found: Callable[[nn.Module], object] = module.fully_shard
    except AttributeError:
        found = importlib.import_module("torch.distributed._composable.fsdp").fully_shard
    return found


def _parameters(groups: Iterable[Any]) -> Iterator[Any]:
    """The tensors of what an optimizer takes: tensors, pairs with names, or groups of them."""
    for group in groups:
        if isinstance(group, dict):
            params = group["params"]
            if not isinstance(params, (list, torch.Tensor)):
                params = group["params"] = list(params)
            yield from _parameters([params] if isinstance(params, torch.Tensor) else params)
        else:
            yield group[1] if isinstance(group, tuple) else group


def _with(group: Any, others: Mapping[int, nn.Parameter]) -> Any:
    """A group with other tensors in place of some."""
    if isinstance(group, dict):
        params = group["params"]
        params = [params] if isinstance(params, torch.Tensor) else params
        return {**group, "params": [_with(each, others) for each in params]}
    if isinstance(group, tuple):
        return group[0], _with(group[1], others)
    return others.get(id(group), group)


def _models_of(parameters: Iterable[Any]) -> list[nn.Module]:
    """The outermost modules that have any of some parameters."""
    wanted = set(map(id, parameters))
    alive = living(nn.Module)
    inner = {id(part) for each in alive for part in each.modules() if part is not each}
    return [
        each
        for each in alive
        if id(each) not in inner and any(id(one) in wanted for one in each.parameters())
    ]
