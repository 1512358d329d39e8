"""Facts on the modules and the optimizers of a program that ran out of memory."""

from __future__ import annotations

import math
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CodeType
from typing import TypeVar

import torch

from .._common.frames.call_stacks import FrameLine, call_stacks
from .._common.frames.user_code import is_of_user
from ..history.out_of_memory import ModelFacts, OptimizerFacts, UntrainedModelFacts
from ..simulation.inspect import SimulatedFailure
from .names import locals_of
from .oom_groups import plain_name

Stack = tuple[FrameLine, ...]
_Kind = TypeVar("_Kind")


class ModelSearch:
    """The modules and the optimizers that hold memory of a device."""

    def __init__(
        self,
        device: torch.device,
        error: BaseException,
        simulated: SimulatedFailure | None,
        sizes: Mapping[int, int],
    ) -> None:
        self._device = device
        self._error = error
        self._simulated = simulated
        self._sizes = sizes  # of the blocks in use, by their addresses

    def model(
        self, modules: list[torch.nn.Module], variables: Mapping[int, str]
    ) -> tuple[ModelFacts, tuple[CodeType, ...]]:
        parameters: dict[int, torch.nn.Parameter] = {}
        training = []
        for module in modules:
            own_parameters = (vars(module).get("_parameters") or {}).values()
            own = [parameter for parameter in own_parameters if parameter is not None]
            parameters.update((id(parameter), parameter) for parameter in own)
            if any(parameter.device == self._device for parameter in own):
                training.append(module.training)
        float32 = [p for p in parameters.values() if p.dtype is torch.float32]
        names = [variables[key].split(".", 1)[0] for key in parameters if key in variables]
        name = Counter(names).most_common(1)[0][0] if names else ""
        attribute, count, codes = self._repeated(modules)
        facts = ModelFacts(
            sum(map(_nbytes, parameters.values())),
            sum(map(_nbytes, float32)),
            plain_name(name),
            attribute,
            count,
            bool(training) and not any(training),
            sum(_nbytes(p) for p in float32 if p.device == self._device and not p.requires_grad),
        )
        return facts, codes

    def untrained(
        self, optimizers: Sequence[torch.optim.Optimizer]
    ) -> tuple[UntrainedModelFacts, ...]:
        """Modules in variables whose gradients no optimizer takes, the largest first."""
        trained = {
            id(parameter)
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        untrained: list[UntrainedModelFacts] = []
        seen = set[int]()
        is_trained = any(self._in_variables(torch.optim.Optimizer))  # none is left of another one
        for name, module in self._in_variables(torch.nn.Module) if is_trained else ():
            parameters = {
                id(parameter): parameter
                for parameter in module.parameters()
                if parameter.requires_grad
            }
            others = [
                parameter
                for key, parameter in parameters.items()
                if key not in trained and key not in seen and parameter.device == self._device
            ]
            seen.update(parameters)
            if others:
                gradients = (other.grad for other in others if other.grad is not None)
                is_partly_trained = not trained.isdisjoint(parameters)
                size = sum(map(_nbytes, others))
                sizes = size, sum(map(_nbytes, gradients))
                untrained.append(UntrainedModelFacts(name, *sizes, is_partly_trained))
        return tuple(sorted(untrained, key=lambda model: -model.parameters))

    def optimizer(self, optimizer: torch.optim.Optimizer) -> OptimizerFacts:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        here = [p for p in parameters if p.device == self._device]
        group = optimizer.param_groups[0] if optimizer.param_groups else {}
        uses_foreach = not group.get("fused") and group.get("foreach") is not False
        return OptimizerFacts(
            type(optimizer).__name__,
            sum(map(_nbytes, here)),
            uses_foreach and "foreach" in group,
            sum(map(_factored, here)),
        )

    def _in_variables(self, kind: type[_Kind]) -> Iterator[tuple[str, _Kind]]:
        """Objects in variables of the running program, and in attributes of its objects."""
        for frame, _ in traceback.walk_tb(self._error.__traceback__):
            if not is_of_user(frame.f_code.co_filename):
                continue
            for name, value in list(locals_of(frame).items()):
                if isinstance(value, kind):
                    yield name, value
                elif name == "self" and hasattr(value, "__dict__"):
                    for attribute, part in list(vars(value).items()):
                        if isinstance(part, kind):
                            yield f"self.{attribute}", part

    def _repeated(
        self, modules: Iterable[torch.nn.Module]
    ) -> tuple[str, int, tuple[CodeType, ...]]:
        """The list of modules of one class that saved the most."""
        numbers = Counter[int]()
        stacks: dict[Stack, int] = {}
        if self._simulated is not None:
            for address, block in self._simulated.live.items():
                numbers[call_stacks.number_of(block)] += self._sizes.get(address, 0)
            stacks = {call_stacks.places_of(number): size for number, size in numbers.items()}
        best: tuple[int, str, int, tuple[CodeType, ...]] = (0, "", 0, ())
        for module in modules:
            for attribute, child in (vars(module).get("_modules") or {}).items():
                if not issubclass(type(child), (torch.nn.ModuleList, torch.nn.Sequential)):
                    continue
                # A module without others in it saves little but its input.
                children = vars(child)["_modules"].values()
                kinds = Counter(type(child) for child in children if vars(child).get("_modules"))
                for kind, count in kinds.items():
                    code = getattr(getattr(kind, "forward", None), "__code__", None)
                    if count < 2 or not isinstance(code, CodeType):
                        continue
                    size = sum(size for stack, size in stacks.items() if runs_in(stack, (code,)))
                    best = max(
                        best, (size, attribute, count, (code,)), key=lambda candidate: candidate[0]
                    )
        return best[1:]


def runs_in(stack: Stack, codes: Iterable[CodeType]) -> bool:
    """True if one of some functions is on a stack."""
    return any(
        name == code.co_name
        and file == code.co_filename
        and code.co_firstlineno <= line <= last_line(code)
        for code in codes
        for file, line, name in stack
    )


def last_line(code: CodeType) -> int:
    return max((line for _, _, line in code.co_lines() if line), default=code.co_firstlineno)


def _factored(parameter: torch.Tensor) -> int:
    """The bytes of Adafactor's state, as ``torch/optim/_adafactor.py`` makes it."""
    if parameter.dim() < 2:
        return _nbytes(parameter)
    *matrices, rows, columns = parameter.shape  # a value is kept for each row and each column
    return math.prod(matrices) * (rows + columns) * parameter.element_size()


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
