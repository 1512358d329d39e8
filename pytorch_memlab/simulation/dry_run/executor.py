"""A dry run: every op returns tensors of the right shapes, and computes nothing.

Note [What a dry run assumes]
A storage has values when a program's own data is in it, or the result of an op on small tensors
that all had values: integers and bools of up to 65,536 elements, other numbers of up to 4,096,
on the CPU and on simulated GPUs. So masks, lengths, positions, learning rates and step counters
are what they are with arithmetic.

Larger data that the program brings is kept too, if all tensors of an op have values, none has more
than 32 MiB (64 MiB of integers and bools), and what is kept has at most 128 MiB in all
(``kept_data.py``). On the CPU every op on such data is computed but for those of models and of
linear algebra; products of matrices are, up to 2**36 multiplications in all. From the CPU it goes
to a GPU with its values, and there ops that make integers or bools, or few numbers, of up to 2**24
elements are computed: comparisons, logic, sums, sorting. So a graph's matrix or a mask that is made
on the CPU selects on a GPU what it selects in a run.
Tensors that require gradients and parameters are not kept, and the CPU draws up to 2**26 random
numbers, none of them in place: a model's weights and their initialisation cost nothing.
A copy is made when the program copies, so that later writes to the original, also by NumPy, do not
reach it.

All else has no values: large tensors own memory that is never touched, small ones hold zeros (or
what they held before an op wrote to them). Ops on small tensors go on to compute with those zeros,
and where these lead to infinity or to no number (0 / 0), it is zero: programs end, or go other
ways, at such a loss. Where a value or a shape depends on such zeros, the read is counted.

The program may read a value that is not there. It then gets 0 (False), and the line is marked. An
op whose output shape depends on values mostly errs on the side of more memory: all elements of a
mask are true, all elements are distinct, every length is the longest. Each op states its assumption
where it is registered, and whether it is more or less than what is true (``Bound``); the user may
say the size (Note [Sizes that the user gives]), and how many tokens the experts of a rank get (Note
[The load of experts]). Each read is kept with the line that made it
(``machine/tensor_values.py``).
"""

from __future__ import annotations

from math import isinf
from typing import Any

import torch

from ..._common.torch.storages import storages_of
from ..machine.op_arguments import Args, Kwargs, is_mask, tensors_in
from ..machine.tensor_values import TensorValues, is_small
from ..ops.core.meta_results import MetaResults, OutputMeta, TensorMeta, tensors_of
from ..ops.core.op_info import OpInfo, op_info
from ..ops.core.registry import SELECTED
from .expert_choices import choosable_experts, choose_experts
from .kept_data import KeptData, is_overwritten

_WITH_NAN = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128}
)
_KNOWN, _ASSUMED, ABSENT, SPECIAL = range(4)
_untyped_storage = torch._C.TensorBase.untyped_storage


class DryRunExecutor:
    """Runs ops without arithmetic."""

    def __init__(self, values: TensorValues) -> None:
        # PyTorch's meta kernels import its compiler at their first call, which takes more of
        # Python's stack than a program deep in calls may have left.
        matrix = torch.empty(1, 1, device="meta")
        torch.addmm(matrix, matrix, matrix)
        self._values = values
        self._results = MetaResults()
        self._data = KeptData(values)

    def execute(self, func: Any, run: Any, args: Args, kwargs: Kwargs, on_gpu: bool) -> Any:
        info = op_info(func)
        device = kwargs.get("device")
        if info.touches_no_element or (device is not None and device.type == "meta"):
            return run(*args, **kwargs)
        tensors = list(tensors_in(args, kwargs))
        state, all_small = self._look_at(tensors)
        if on_gpu and self._values.routing is not None and state != SPECIAL:
            experts = choosable_experts(
                self._values, info, args, kwargs, has_values=state == _KNOWN
            )
            if experts:
                output = self._output_meta(info, func, args, kwargs)
                result = self._returned(info, output, tensors, args, kwargs)
                choose_experts(self._values, experts, info, args, kwargs, result)
                return result
        if state == SPECIAL:  # sparse, nested or meta tensors
            if info.sparse is None or any(tensor.is_meta for tensor in tensors):
                return func(*args, **kwargs)
            return info.sparse(self._values, args, kwargs)
        depends = info.data_dependence
        if depends is not None and depends.outputs is not None:
            if state == _KNOWN:
                return run(*args, **kwargs)
            if depends.size is None and not depends.counts_itself:
                depends.count(self._values, info.name)
            return depends.outputs(self._values, args, kwargs)
        if not info.returns_tensors and not info.written:
            return run(*args, **kwargs)
        if state != _KNOWN and is_overwritten(self._values, info, args):
            state = _KNOWN
        can_compute = state == _KNOWN or (state == _ASSUMED and not info.takes_masks)
        if all_small and can_compute and info.runs_on_cpu:
            try:
                output = self._output_meta(info, func, args, kwargs)
            except NotImplementedError:
                return self._compute(info, run, args, kwargs, state)
            if _is_small_output(output):
                try:
                    return self._compute(info, run, args, kwargs, state)
                except _NotComputableError:
                    pass
        else:
            output = self._output_meta(info, func, args, kwargs)
        if (
            state == _KNOWN
            and info.runs_on_cpu
            and self._data.keeps(info, output, tensors, on_gpu=on_gpu)
        ):
            result = run(*args, **kwargs)
            results = tuple(result) if isinstance(result, (tuple, list)) else (result,)
            self._data.hold((*tensors_in(results, {}), *info.written_in(args, kwargs)))
            return result
        return self._returned(info, output, tensors, args, kwargs)

    def _look_at(self, tensors: list[torch.Tensor]) -> tuple[int, bool]:
        """The least of what is known of the values of some tensors, and True if all are small."""
        readable_storages = self._values.absent.known
        state = _KNOWN
        all_small = True
        for tensor in tensors:
            try:
                readable = readable_storages.get(_untyped_storage(tensor)._cdata)
            except (NotImplementedError, RuntimeError, ValueError):
                return SPECIAL, False
            if tensor.is_nested:
                return SPECIAL, False
            if readable is None:
                if tensor.is_meta:
                    return SPECIAL, False
            elif not readable:
                state = ABSENT
            elif state == _KNOWN:
                state = _ASSUMED
            all_small = all_small and is_small(tensor.numel(), tensor.dtype)
        return state, all_small

    def _output_meta(self, info: OpInfo, func: Any, args: Args, kwargs: Kwargs) -> OutputMeta:
        if info.takes_masks:
            args = (args[0], self._without_masks(info.name, args[1]), *args[2:])
        return self._results.of(info, func, args, kwargs)

    def _without_masks(
        self, name: str, indices: list[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """Masks among indices replaced by indices without values, of as many as are selected."""
        plain: list[torch.Tensor | None] = []
        for index in indices:
            if not is_mask(index):
                plain.append(index)
                continue
            if self._values.is_known(index):
                count = int(torch.count_nonzero(index))
            else:
                count = SELECTED.of(self._values, name, index.numel(), index.numel())
            selected = torch.empty(count, dtype=torch.int64, device="meta")
            plain.extend([selected] * index.dim())
        return plain

    def _compute(self, info: OpInfo, run: Any, args: Args, kwargs: Kwargs, state: int) -> Any:
        """Run an op on small tensors as it is."""
        if state == _KNOWN:
            return run(*args, **kwargs)
        try:
            result = run(*args, **kwargs)
        except RuntimeError:
            # Zeros are no matrix to invert, and no number to divide by.
            raise _NotComputableError from None
        for tensor in info.written_in(args, kwargs):
            self._values.forget_values(tensor)
            if tensor.dtype in _WITH_NAN:
                _fill(tensor, tensor.ne(tensor))
        for tensor in tensors_in(result if isinstance(result, tuple) else (result,), {}):
            for storage in storages_of(tensor):
                self._values.add(storage, True)
            _fill_non_numbers(tensor, args, kwargs)
        return result

    def _returned(
        self,
        info: OpInfo,
        output: OutputMeta,
        tensors: list[torch.Tensor],
        args: Args,
        kwargs: Kwargs,
    ) -> Any:
        """Results of an op that does not run."""
        if info.written:
            self._write(info, output, args, kwargs)
        fresh: dict[int, torch.Tensor] = {}
        if info.returned == (None,):  # as most ops
            return self._made(output.result, tensors, fresh)
        outputs = [output.result] if len(info.returned) == 1 else output.result
        results = tuple(
            self._made(outputs[position], tensors, fresh)
            if source is None
            else info.argument(source, args, kwargs)
            for position, source in enumerate(info.returned)
        )
        return results[0] if len(results) == 1 else results or None

    def _write(self, info: OpInfo, output: OutputMeta, args: Args, kwargs: Kwargs) -> None:
        written = list(info.written_in(args, kwargs))
        for tensor, size in zip(written, output.sizes or (), strict=False):
            if tensor.shape != size:
                tensor.resize_(size)
        for tensor in written:
            self._values.forget_values(tensor)

    def _made(self, spec: Any, tensors: list[torch.Tensor], fresh: dict[int, torch.Tensor]) -> Any:
        """A result, in a new storage or one that it shares."""
        if isinstance(spec, list):
            return [self._made(part, tensors, fresh) for part in spec]
        if not isinstance(spec, TensorMeta):
            return spec
        if spec.argument >= 0:
            base = tensors[spec.argument]
            return base.as_strided(spec.size, spec.stride, base.storage_offset() + spec.offset)
        shared = fresh.get(spec.fresh)
        if shared is None and spec.is_whole:
            made = fresh[spec.fresh] = self._values.make_strided(spec.size, spec.stride, spec.dtype)
            return made
        if shared is None:
            shared = fresh[spec.fresh] = self._values.make_strided((spec.numel,), (1,), spec.dtype)
        return shared.as_strided(spec.size, spec.stride, spec.offset)


class _NotComputableError(Exception):
    """An op fails on zeros that stand for values."""


def _fill_non_numbers(tensor: torch.Tensor, args: Args, kwargs: Kwargs) -> None:
    """Put zeros where zeros that stand for values led to infinity, or to no number."""
    if tensor.dtype not in _WITH_NAN or tensor.layout is not torch.strided:
        return
    is_no_number = tensor.sub(tensor).ne(0)
    if is_no_number.any():
        if _has_infinity(args) or _has_infinity(tuple(kwargs.values())):
            is_no_number = tensor.ne(tensor)
        _fill(tensor, is_no_number)


def _has_infinity(values: Args) -> bool:
    """True if the program gave infinity to an op: as a number, or in a tensor."""
    if any(isinstance(value, float) and isinf(value) for value in values):
        return True
    return any(bool(tensor.isinf().any()) for tensor in tensors_in(values, {}))


def _fill(tensor: torch.Tensor, places: torch.Tensor) -> None:
    if places.any():
        tensor.masked_fill_(places, 0)


def _is_small_output(output: OutputMeta) -> bool:
    if any(not is_small(size.numel(), torch.float32) for size in output.sizes or ()):
        return False
    return all(is_small(spec.numel, spec.dtype) for spec in tensors_of(output.result))
