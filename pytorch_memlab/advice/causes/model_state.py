"""Parameters, gradients and optimizer state fill one GPU: several can have a shard each."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._common.patching.patches import Patches
from ..._common.text.prose_size import prose_size
from ...errors import UsageError
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory
from ..around_program import AroundProgram, Edit, Finding, already_used, applied, does_not_apply
from ..cause import Basis, Cause, NamedChange, Remedy
from ..lines_to_edit import after_imports, before_statement, model_variable, user_lines
from ..repeated_blocks import in_code, repeated_blocks

if TYPE_CHECKING:
    from torch import nn

_FIRST = (
    "import os",
    "import torch",
    'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
    'torch.distributed.init_process_group("nccl")',
)
"""Code that each process runs first."""


class Sharding(AroundProgram):
    """The model is sharded when its optimizer is made, and this process is one of the ranks."""

    has_other_values = False

    def __init__(self, ranks: str) -> None:
        if not ranks.isdecimal() or int(ranks) < 2:
            raise UsageError(f"shard=N takes a number of GPUs from 2 on, not {ranks}")
        self.ranks = int(ranks)
        self.name = f"shard={self.ranks}"
        self.what_it_changes = f"needs {self.ranks} GPUs, each with its own batch"
        self._before = os.environ.get("WORLD_SIZE", "1")

    def environment(self) -> Mapping[str, str]:
        sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(self.ranks))
        ranks = dict.fromkeys(("RANK", "LOCAL_RANK"), "0")
        return {**sizes, **ranks, "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}

    def patch(self, patches: Patches) -> None:
        from torch.optim.optimizer import Optimizer

        self._edits: list[Edit | None] = []
        self._code: list[str] = []
        self._of_program = ""
        patches.around(Optimizer, "__init__")(self._init)

    def finding(self) -> Finding:
        if self._before != "1":
            return already_used(f"the program is one of {self._before} ranks")
        if self._of_program:
            return does_not_apply(self._of_program)
        if not self._code:
            return does_not_apply("no optimizer has the parameters of a module")
        code = [f"# torchrun --nproc-per-node {self.ranks} ...", *_FIRST, *self._code]
        main = getattr(sys.modules["__main__"], "__file__", None) or ""
        return applied(code, [after_imports(main, _FIRST), *self._edits])

    def _init(
        self, original: Callable[..., None], optimizer: Any, params: Any, defaults: Any
    ) -> None:
        import torch

        # The caller has the list too: it must not keep the parameters from being freed.
        groups = params if isinstance(params, list) else list(params)
        for group in groups:
            if isinstance(group, dict) and not isinstance(group["params"], list):
                parameters = group["params"]
                group["params"] = (
                    [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
                )
        self._shard_all(groups)
        original(optimizer, groups, defaults)

    def _shard_all(self, groups: list[Any]) -> None:
        """Shard the models that have the parameters of an optimizer, which takes the shards."""
        lists = [group["params"] for group in groups if isinstance(group, dict)]
        lists.append(groups)
        models = _models_of(parameter for listed in lists for parameter in listed)
        paths: dict[int, tuple[nn.Module, str]] = {}
        for model in models:
            if self._is_whole(model):
                for path, parameter in model.named_parameters():
                    paths[id(parameter)] = (model, path)
        for listed in lists:
            listed[:] = [_without_tensor(parameter, paths) for parameter in listed]
        for model in models:
            if any(model is owner for owner, _ in paths.values()):
                self._shard(model)
        for listed in lists:
            listed[:] = [_with_tensor(parameter) for parameter in listed]

    def _is_whole(self, model: nn.Module) -> bool:
        """True if a model can be sharded; if not, the reason is kept."""
        from torch import nn

        if isinstance(model, nn.parallel.DistributedDataParallel):
            self._of_program = "the model is in DistributedDataParallel"
        elif any(type(module).__name__.startswith("FSDP") for module in model.modules()):
            self._of_program = "the program shards the model"
        else:
            return True
        return False

    def _shard(self, model: nn.Module) -> None:
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("nccl")
        from torch.distributed.fsdp import fully_shard

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


class _Path(NamedTuple):
    """A parameter of a model, by its name."""

    model: nn.Module
    path: str
    name: str | None  # that the optimizer was given with it; None for none


def _without_tensor(item: Any, paths: Mapping[int, tuple[nn.Module, str]]) -> Any:
    name, parameter = item if isinstance(item, tuple) else (None, item)
    place = paths.get(id(parameter))
    return item if place is None else _Path(*place, name)


def _with_tensor(item: Any) -> Any:
    if not isinstance(item, _Path):
        return item
    parameter = item.model.get_parameter(item.path)
    return parameter if item.name is None else (item.name, parameter)


def _models_of(parameters: Iterable[Any]) -> list[nn.Module]:
    """The outermost modules that have any of the parameters of an optimizer."""
    from torch import nn

    from ...tensors.live_objects import instances_of

    wanted = {
        id(parameter[1] if isinstance(parameter, tuple) else parameter) for parameter in parameters
    }
    alive = instances_of(nn.Module)
    inner = {id(part) for model in alive for part in model.modules() if part is not model}
    return [
        model
        for model in alive
        if id(model) not in inner
        and any(id(parameter) in wanted for parameter in model.parameters())
    ]


_GPUS = 8


class ModelState(Cause):
    """Nothing is wrong: the model, its gradients and its optimizer are large."""

    name = "parameters, gradients and optimizer state"
    order = 197
    is_last_resort = True
    tried_by_name = (NamedChange("shard", Sharding, str(_GPUS), "N"),)

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        state = (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER_STATE)
        whole = oom.of_category(*state)
        if not oom.optimizers or whole * 2 < oom.in_use:
            return None
        size = whole - whole // _GPUS
        return self.found(
            size,
            f"parameters, gradients and optimizer state take {prose_size(whole)}",
            f"fully_shard(model)  # and torchrun, with {_GPUS} GPUs",
            basis=Basis.ESTIMATED,
            change=Sharding(str(_GPUS)),
        )
