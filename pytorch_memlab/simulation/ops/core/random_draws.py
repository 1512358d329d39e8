"""Ops that draw random numbers on a simulated GPU draw from its generator, and from no other."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...machine.cuda_generator import GeneratorState, SimulatedGenerator, simulated_generator
from .op_call import named_arguments
from .registry import overloads_of

_cpu_generator: Any = torch._C.default_generator
_lent = threading.Lock()


@dataclass(frozen=True, slots=True)
class Draw:
    """Random numbers of a captured op: where in the generator's sequence, and how to draw them."""

    state: GeneratorState
    offset: int  # from where the graph begins
    drawing: Callable[[torch.Generator], Callable[..., Any]]


def draws(op: Any) -> bool:
    """True if an op draws random numbers: backward passes use those that were drawn."""
    schema = op._schema
    return (
        torch.Tag.nondeterministic_seeded in op.tags
        and not schema.name.endswith("_backward")
        and any("Tensor" in str(result.type) for result in schema.returns)
    )


def generator_of(kwargs: dict[str, Any], on_gpu: bool) -> SimulatedGenerator | None:
    """The simulated generator that a call names."""
    argument = kwargs.get("generator")
    if argument is None:
        return None
    generator = simulated_generator(argument)
    if (generator is not None) is not on_gpu:
        expected, other = ("cuda", "cpu") if on_gpu else ("cpu", "cuda")
        raise RuntimeError(f"Expected a '{expected}' device type for generator but found '{other}'")
    return generator


def drawing(
    op: Any,  # a ``torch._ops.OpOverload``
    run: Callable[..., Any],  # computes it
    is_named: bool,  # the call names a generator
    source: torch.Generator,  # it draws from this
) -> Callable[..., Any]:
    """A function that runs an op which draws on a simulated GPU, from a generator of the CPU."""
    if is_named:
        return functools.partial(_run_with_source, run, source)
    variant = _with_generator(op) if run is op else None
    if variant is None:
        return functools.partial(_run_on_lent_generator, run, source)
    return functools.partial(_run_variant, op, variant, source)


def draws_nothing(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True if a call has a dropout of zero, and draws nothing for it."""
    arguments = named_arguments(op, args, kwargs)
    return bool(arguments.get("dropout_p", arguments.get("dropout")) == 0)


@functools.cache
def _with_generator(op: Any) -> Any:
    """The overload of an op that takes a generator; the op itself if it takes one."""
    names = [argument.name for argument in op._schema.arguments]
    if "generator" in names:
        return op
    for other in overloads_of(op):
        others = [argument.name for argument in other._schema.arguments]
        if "generator" in others and [name for name in others if name != "generator"] == names:
            return other
    return None


def _run_with_source(run: Callable[..., Any], source: Any, *args: Any, **kwargs: Any) -> Any:
    return run(*args, **{**kwargs, "generator": source})


def _run_variant(op: Any, variant: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
    return variant(**{**named_arguments(op, args, kwargs), "generator": source})


def _run_on_lent_generator(run: Callable[..., Any], source: Any, *args: Any, **kwargs: Any) -> Any:
    """Run what draws from the CPU's own generator, and put that back as it was."""
    with _lent:
        before = _cpu_generator.get_state()
        _cpu_generator.manual_seed(source.initial_seed())
        try:
            return run(*args, **kwargs)
        finally:
            _cpu_generator.set_state(before)
