"""The registry of ops: everything known about an op stands in one registration.

A module of a family registers its ops when it is imported; the registry imports all families at
the first question.
"""

from __future__ import annotations

import functools
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Any, Final

import torch

from ...._common.frames.program_lines import current_line
from ...machine.tensor_values import Bound, TensorValues
from .op_call import OpCall

Memory = Callable[[OpCall], None]
Implementation = Callable[..., Any]
Rule = Callable[[TensorValues, tuple[Any, ...], dict[str, Any]], Any]

# What a dry run assumes of values.
ZERO: Final = "0"
TRUE: Final = "every element True"
DISTINCT: Final = "all elements distinct"


@dataclass(frozen=True, slots=True)
class AssumedSize:
    """A size that values decide: what a dry run assumes, and what that is to the true size."""

    called: str  # the name of the op that a program calls it by
    assumption: str  # what a dry run assumes the values to be
    bound: Bound  # of memory, if the assumption is more or less than what is true
    # the name by which a user gives the size, one of ``SIZED_OPS`` of ``machine/assumed_sizes.py``;
    # empty if it cannot be given
    option: str = ""

    def of(self, values: TensorValues, op: str, elements: int, assumed: int) -> int:
        """The size, in elements: ``assumed`` if the user does not say it. The read is counted."""
        # Raises AssumedValueError if the simulation is strict.
        amount = None
        if self.option and values.assumed:
            amount = values.assumed.find(self.option, *current_line())
        if amount is None:
            values.reads.count(op, self.called, self.assumption, self.bound)
            return assumed
        values.reads.count(op, self.called, str(amount), Bound.GIVEN)
        size = amount.of(elements)
        return min(size, assumed) if self.bound is Bound.AT_MOST else size


@dataclass(frozen=True, slots=True)
class DataDependence:
    """The use that an op makes of values, for dry runs, which have none."""

    called: str = ""  # the name that a program calls it by; empty for a size
    assumption: str = ""  # what a dry run assumes the values to be
    # returns the outputs without values; None: the op takes masks among the indices that are its
    # second argument
    outputs: Rule | None = None
    # what values decide, if it is a size; ``outputs`` asks it, and so counts the read
    size: AssumedSize | None = None
    counts_itself: bool = False  # ``outputs`` counts the read of a value

    def count(self, values: TensorValues, op: str) -> None:
        """Count a read of a value that a dry run does not have."""
        # Raises AssumedValueError if the simulation is strict.
        values.reads.count(op, self.called, self.assumption)


SELECTED: Final = AssumedSize("mask as an index", TRUE, Bound.AT_MOST, "mask")
MASKS: Final = DataDependence(size=SELECTED)
"""Of ops that take masks among indices."""


class Provenance(Enum):
    """The evidence for the memory of an op."""

    # ``RECORDING``: a recording of a real GPU has an allocation of the op that is no output, and
    # the simulation of the recorded program makes the same one; a test finds it in
    # ``test/data/recordings``. ``SOURCE``: the sources of PyTorch give every size and the order,
    # but no recording shows them. ``ESTIMATE``: something decides that the sources do not show,
    # such as the plan of a library.

    RECORDING = "confirmed by a recording"
    SOURCE = "read in PyTorch's sources"
    ESTIMATE = "estimate"


@dataclass(slots=True, kw_only=True)
class OpDefinition:
    """The facts of an op beyond its schema and PyTorch's kernels for the CPU."""

    name: str  # of the op, with that of the overload behind a dot where it has one
    home: str = ""  # name of the module that registers it
    # allocates what CUDA's kernels allocate, in their order; None: the outputs only
    memory: Memory | None = None
    # how well the memory is known; None: nothing is said about memory
    provenance: Provenance | None = None
    source: str = ""  # file of PyTorch's sources that the memory comes from
    # computes on the CPU what CUDA's kernel returns; None: the CPU's kernel does
    reference: Implementation | None = None
    # the same on the meta device; None: PyTorch's meta kernel gives CUDA's outputs
    meta: Implementation | None = None
    # takes the arguments on the meta device and the result of PyTorch's meta kernel, and returns
    # the right result
    corrects_meta: Callable[[tuple[Any, ...], Any], Any] | None = None
    cpu_outputs: frozenset[int] = frozenset()  # positions of outputs that CUDA makes on the CPU
    takes_cpu_tensors: bool = False  # CUDA's kernel takes some arguments on the CPU
    # its outputs may go to the CPU, while its kernels use memory of the GPU
    may_leave_gpu: bool = False
    resizes: bool = False  # it may change the size of a storage that exists
    # runs above autograd in place of a composite op; takes the simulated GPU and the arguments, and
    # returns ``NotImplemented`` to leave the op to PyTorch
    cuda_dispatch: Implementation | None = None
    takes_nested: bool = False  # ``cuda_dispatch`` runs for nested tensors too
    # the same below autograd, for an op whose kernels call other ops; it returns ``NotImplemented``
    # where the CPU's kernel calls the ops that CUDA's does, or, of an op with a memory, where the
    # op is to run as a whole
    composite: Implementation | None = None
    # the same where the first argument is a sparse COO tensor
    composite_of_sparse: Implementation | None = None
    # registered for the CPU while simulating, so that autograd keeps the op whole
    cpu_kernel: Implementation | None = None
    # positions of arguments that it writes to though its schema does not say so
    writes: tuple[int, ...] = ()
    # nodes whose formulas run it in place on a GPU, by name without a number; empty: only sums of
    # gradients do. See Note [In-place gradient accumulation].
    in_place_in: frozenset[str] | None = None
    # it makes views or changes sizes only, though its schema does not say so
    touches_no_element: bool = False
    data_dependence: DataDependence | None = None  # how its outputs depend on values
    sparse: Implementation | None = None  # in a dry run, its result for sparse tensors


_definitions: Final[dict[str, OpDefinition]] = {}


def define(
    # such as ``aten::max.dim``; ``aten::set_.*`` means every overload that has no registration
    name: str,
    *more_names: str,
    **facts: Any,  # fields of ``OpDefinition``
) -> None:
    """Register ops that share their facts; ValueError for an op that is registered twice."""
    # With a source, the provenance is ``SOURCE`` by default; ``values`` is a reference that serves
    # the meta device too.
    home = _calling_module()
    if "values" in facts:
        facts["reference"] = facts["meta"] = facts.pop("values")
    if "source" in facts:
        facts.setdefault("provenance", Provenance.SOURCE)
    for op_name in (name, *more_names):
        if op_name in _definitions:
            raise ValueError(
                f"{op_name} is registered in {_definitions[op_name].home} and in {home}: "
                "give all its facts in one registration"
            )
        _definitions[op_name] = OpDefinition(name=op_name, home=home, **facts)


def _calling_module() -> str:
    frame = sys._getframe(1)
    while frame.f_globals["__name__"] == __name__ and frame.f_back is not None:
        frame = frame.f_back
    return str(frame.f_globals["__name__"])


def op(
    name: str,  # such as ``aten::max.dim``
    *more_names: str,  # of other ops with the same facts
    source: str,  # file of PyTorch's sources that the memory comes from
    **facts: Any,  # other fields of ``OpDefinition``
) -> Callable[[Memory], Memory]:
    """A decorator that registers a function as the memory of ops, and returns it as it is."""
    # The provenance is ``SOURCE`` by default.

    def register(memory: Memory) -> Memory:
        define(name, *more_names, memory=memory, source=source, **facts)
        return memory

    return register


estimated: Final = functools.partial(op, provenance=Provenance.ESTIMATE)
recorded: Final = functools.partial(op, provenance=Provenance.RECORDING)


def as_on_cpu(*_args: Any, **_kwargs: Any) -> Any:
    """The ``composite`` of an op whose kernel for the CPU calls the ops that CUDA's does."""
    # Its memory is theirs.
    return NotImplemented


@functools.cache
def definitions() -> Mapping[str, OpDefinition]:
    """All registrations, by the op's name."""
    package = __name__.rsplit(".", 2)[0]  # the one above core
    try:
        for module in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
            import_module(module.name)
    except BaseException:  # an interrupted module is imported again
        for name in [
            name for name, definition in _definitions.items() if definition.home not in sys.modules
        ]:
            del _definitions[name]
        raise
    return _definitions


def definition_of(op: Any) -> OpDefinition | None:
    """The definition of an ``OpOverload``; one with ``out=`` has the memory of the one without."""
    own = _named(op)
    if own is not None or not is_out(op):
        return own
    inputs = _inputs(op)
    alike = (
        overload
        for overload in overloads_of(op)
        if overload is not op and _inputs(overload) == inputs
    )
    definition = next(
        (candidate for candidate in map(_named, alike) if candidate is not None), None
    )
    if definition is None or (definition.composite is not None and definition.memory is not None):
        return None
    # PyTorch generates such overloads of composites: they call the one without.
    composite = None if definition.composite is None else as_on_cpu
    facts = {fact: getattr(definition, fact) for fact in _FOR_OUT}
    if definition.reference is not None:
        facts["reference"] = functools.partial(_into_outs, op, definition.reference)
    return OpDefinition(composite=composite, **facts)


def _into_outs(op: Any, reference: Implementation, *args: Any, **kwargs: Any) -> Any:
    """Write what the reference of the overload without ``out=`` returns."""
    names = [argument.name for argument in op._schema.arguments if argument.is_out]
    if any(kwargs[name].layout is not torch.strided for name in names):
        return op(*args, **kwargs)
    outs = [kwargs.pop(name) for name in names]
    outputs = reference(*args, **kwargs)
    results = outputs if isinstance(outputs, tuple) else (outputs,)
    pairs = list(zip(outs, results, strict=False))
    if not all(torch.can_cast(result.dtype, out.dtype) for out, result in pairs):
        return op(*args, **kwargs, **dict(zip(names, outs, strict=True)))  # which refuses them
    for out, result in pairs:
        resize_output(out, result.shape).copy_(result)
    return outs[0] if len(outs) == 1 else tuple(outs)


def resize_output(out: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Give ``out=`` the shape of its result, with PyTorch's warning if that takes its elements."""
    if out.shape != shape and out.numel():
        meta = torch.empty(out.shape, device="meta")
        torch.ops.aten._resize_output_.default(meta, shape, meta.device)
    return out.resize_(shape)


def provenances() -> Iterator[tuple[str, Provenance, str]]:
    """Name, provenance and source of every op with a memory model, by name."""
    for name, definition in sorted(definitions().items()):
        if definition.provenance is not None:
            yield name, definition.provenance, definition.source


_FOR_OUT: Final = (
    *("name", "memory", "provenance", "source", "takes_cpu_tensors", "data_dependence"),
)
"""Facts that hold for the overload that writes to ``out=`` too."""


def _named(op: Any) -> OpDefinition | None:
    name, overload = op._schema.name, op._schema.overload_name
    by_name = definitions()
    return by_name.get(f"{name}.{overload}" if overload else name) or by_name.get(f"{name}.*")


def is_out(op: Any) -> bool:
    """True if an overload writes to ``out=``."""
    return any(argument.is_out for argument in op._schema.arguments)


def overloads_of(op: Any) -> Iterator[Any]:
    """All overloads of an op."""
    packet = op.overloadpacket
    return (getattr(packet, overload) for overload in packet.overloads())


def _inputs(op: Any) -> list[tuple[str, str]]:
    return [
        (argument.name, str(argument.type))
        for argument in op._schema.arguments
        if not argument.is_out
    ]
