"""A call of an op that came to the dispatch mode: what it reads, how it runs, what it takes."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

from ..._common.interrupts.uninterrupted import STANDARD_SIGNALS, uninterrupted
from ..._common.torch.storages import storages_of
from ...errors import (
    EstimatedMemoryError,
    HostMemoryError,
    MemlabError,
    UnmodelledOpError,
    UnsupportedCUDACallError,
)
from ..machine.machine import Machine, compute
from ..machine.op_arguments import Args, Kwargs, list_of_tensors
from ..machine.refused_calls import unsupported
from ..machine.simulated_gpu import Allocation, SimulatedGPU
from ..ops.core import random_draws
from ..ops.core.autograd_reference import lazy_conjugation
from ..ops.core.library_ops import has_cpu_kernel, refuse_to_compute
from ..ops.core.op_call import OpCall
from ..ops.core.op_info import OpInfo
from .gradient_accumulation import InPlaceGradientAccumulation

_NO_HOST_MEMORY = re.compile(r"you tried to allocate (\d+) bytes")
_STRIDED = torch.strided
_untyped_storage = torch._C.TensorBase.untyped_storage
_is_complex = torch._C.TensorBase.is_complex
_current_node = torch._C._current_autograd_node


class DispatchedCall(OpCall):
    """A call of an op: all that is known of it, from its arguments to its results."""

    # ``OutputDevices`` says where it runs and where its outputs live.

    runs_on: SimulatedGPU | None = None  # the GPU whose kernels run; None: those of the CPU
    outputs_on: SimulatedGPU | None = None  # the GPU of the outputs; None: the CPU
    pins_output = False
    is_special = False  # whether a tensor is sparse or nested, which have other kernels
    is_complex = False  # whether a tensor has complex numbers

    def __init__(
        self,
        machine: Machine,
        gradients: InPlaceGradientAccumulation,  # of the thread
        info: OpInfo,
        op: Any,  # a ``torch._ops.OpOverload``
        args: Args,
        kwargs: Kwargs,
    ) -> None:
        self.machine = machine
        self.info = info
        self.op = op
        self.args = args
        self.kwargs = kwargs
        self.is_confirmed = info.is_confirmed
        self._gradients = gradients
        self._temporaries = []
        self.tensors = tensors = list_of_tensors(args, kwargs)
        # of each tensor, None where it has no memory on a GPU
        self.allocations: list[Allocation | None] = []
        if tensors:
            table = machine.allocations
            allocation_of, note = table.of, self.allocations.append
            for tensor in tensors:  # all that is asked of each
                try:
                    note(allocation_of(_untyped_storage(tensor)))
                except (NotImplementedError, RuntimeError, ValueError):
                    note(table.find(tensor))
                if tensor.layout is not _STRIDED or tensor.is_nested:
                    self.is_special = True
                if _is_complex(tensor):
                    self.is_complex = True

    def again(self) -> DispatchedCall:
        """The same call, of which nothing has run."""
        parts = (self.machine, self._gradients, self.info, self.op, self.args, self.kwargs)
        return DispatchedCall(*parts)

    def run_in_place(self, node: Any) -> None:
        """In a backward pass, run what a GPU runs in place."""
        self.tensors.clear()  # which counts references
        self.op = self._gradients.in_place_variant(node, self.op, self.args)

    def run(self) -> Any:
        """Compute on tensors of the CPU, and allocate what the kernels of CUDA allocate."""
        info, on = self.info, self.runs_on
        has_model = info.memory is not None
        if not has_model or on is None or self.is_special:
            self.result = result = self._computed()
            self.allocate_outputs()
            if self.outputs_on is not None and (
                info.makes_tensors if has_model else not info.is_modelled
            ):
                self._count_unmodelled(self.outputs_on)
            return result
        if info.only_writes and not info.writes_out:
            # An error for lack of memory leaves the arguments as they were.
            misfit = None
            try:
                self.allocate(on, info.written_result(self.args, self.kwargs))
            except (torch.OutOfMemoryError, MemlabError):
                raise
            except Exception as error:
                misfit = error  # arguments that do not fit: PyTorch refuses them in its words
            result = self._computed()
            if misfit is not None:
                raise misfit
            return result
        result = self._computed()
        self.allocate(on, result)
        return result

    def _computed(self) -> Any:
        """Run the op on tensors of the CPU."""
        gpu, op, machine = self.outputs_on, self.op, self.machine
        try:
            run = op if gpu is None else self.info.reference or op
            if self.info.draws:
                run = self._drawing(run)
            execute = machine.execute
            if self.is_complex:
                with lazy_conjugation():
                    result = execute(op, run, self.args, self.kwargs, gpu is not None)
            elif execute is not compute:
                result = execute(op, run, self.args, self.kwargs, gpu is not None)
            else:  # as most do: two calls of Python less
                if run is op and type(op) is OpOverload:
                    run = op._op
                result = run(*self.args, **self.kwargs)
        except UnsupportedCUDACallError:
            raise
        except NotImplementedError as error:
            if gpu is not None and not self.info.runs_on_cpu:
                raise refuse_to_compute(op) from error
            if gpu is not None and not has_cpu_kernel(op):
                raise unsupported(op.name()) from error
            raise
        except RuntimeError as error:
            self._check_host_memory(error)
            raise
        if self.pins_output:
            machine.pin(_untyped_storage(result))
        if gpu is not None:
            machine.thread.last_gpu = gpu
        return result

    def _drawing(self, run: Any) -> Any:
        """A function that runs the op with the generator of its device."""
        gpu, machine = self.outputs_on, self.machine
        named = random_draws.generator_of(self.kwargs, on_gpu=gpu is not None)
        if gpu is None or random_draws.draws_nothing(self.op, self.args, self.kwargs):
            return run
        generator = named or machine.generators[gpu.index]
        offset = generator.start_draw()
        drawing = partial(random_draws.drawing, self.op, run, named is not None)
        capture = machine.current_capture(gpu.index)
        if capture is not None and capture.recording is not None:
            capture.recording.draw = random_draws.Draw(generator.state, offset, drawing)
        return drawing(generator.state.source(offset))

    def allocate(
        self,
        gpu: SimulatedGPU,  # whose kernels they are
        result: Any,  # of the op
    ) -> None:
        """Allocate what the op's kernels allocate, in their order, and free the temporaries."""
        self.gpu, self.result = gpu, result
        self.stream = self.machine.current_stream(gpu.index)
        with uninterrupted(*STANDARD_SIGNALS):
            try:
                if self.info.memory is not None:
                    self.info.memory(self)
                self.alloc_outputs()
                if self.unknown_workspace:
                    self._count_uncounted()
                if self.estimated:
                    self._count_estimated()
            finally:
                self.free_temps()

    def allocate_outputs(self) -> None:
        """Label what the op made on a GPU, and follow the sizes of what it resized."""
        info = self.info
        if self.outputs_on is None:
            return
        if info.makes_tensors or _is_special(self.result):  # a sparse view has other indices
            self._label_results()
        if info.may_resize or (info.mutates_first and _is_special(self.args[0])):
            self._follow_sizes()

    def allocate_output(self, tensor: torch.Tensor, *, is_estimate: bool = False) -> None:
        """Label the storages of an output that have no label yet, and allocate their memory."""
        gpu, machine = self.outputs_on, self.machine
        if gpu is None:
            return
        for storage in storages_of(tensor):
            if machine.allocations.of(storage) is None:
                if tensor.layout is not _STRIDED or not machine.is_in_graph_pool(gpu):
                    machine.put(storage, gpu, is_estimate=is_estimate)
                else:
                    storage = machine.put_in_pool(tensor, gpu, is_estimate=is_estimate)
                    capture = machine.current_capture(gpu.index)
                    if capture is not None and capture.recording is not None:
                        capture.recording.made(storage)
                if _current_node() is not None:
                    self._gradients.made(storage._cdata)

    def _label_results(self) -> None:
        result, allocate_output = self.result, self.allocate_output
        if isinstance(result, torch.Tensor):
            allocate_output(result)
            return
        if not isinstance(result, (tuple, list)):
            return
        for position, item in enumerate(result):
            if isinstance(item, torch.Tensor):
                if position not in self.info.cpu_outputs:
                    allocate_output(item)
            elif isinstance(item, (tuple, list)):
                for tensor in item:
                    if isinstance(tensor, torch.Tensor):
                        allocate_output(tensor)

    def _follow_sizes(self) -> None:
        machine, gpu = self.machine, self.outputs_on
        allocations = machine.allocations.known
        for tensor in list_of_tensors(self.args, self.kwargs):
            for storage in storages_of(tensor):
                if storage._cdata in allocations:
                    machine.resized(storage)
                elif tensor is self.args[0] and gpu is not None:
                    machine.put(storage, gpu)

    def _count_unmodelled(self, gpu: SimulatedGPU) -> None:
        if self.machine.strict:
            raise UnmodelledOpError(
                f"{self.op} has no memory model: what its CUDA kernels take is not known; without "
                "strict=True (--strict) only its outputs are counted, and the line is marked ?"
            )
        self.machine.approximations[gpu.index].count_unmodelled(self.op, self.result)

    def _count_uncounted(self) -> None:
        unknown = self.unknown_workspace
        if self.machine.strict:
            raise UnmodelledOpError(
                f"{self.op} takes {unknown}, whose size is not known: the peak is a lower bound; "
                "without strict=True (--strict) the rest is counted, and the line is marked ?"
            )
        self.machine.approximations[self.gpu.index].count_uncounted(
            self.op, unknown, self.workspace_bound, gives_way=self.workspace_gives_way
        )

    def _count_estimated(self) -> None:
        if self.machine.strict == "estimates":
            raise EstimatedMemoryError(
                f"{self.op} takes an estimated {self.estimated} bytes of kernel memory, which no "
                "recording confirms; strict=True (--strict) counts them, and the line is marked ~"
            )
        self.machine.approximations[self.gpu.index].count_estimated(self.op, self.estimated)

    def _check_host_memory(self, error: RuntimeError) -> None:
        """Name the memory that ran out where the CPU cannot hold a tensor of a simulated GPU."""
        refused, gpu = _NO_HOST_MEMORY.search(str(error)), self.outputs_on
        if refused is None or gpu is None:
            return
        nbytes = int(refused[1])
        with uninterrupted(*STANDARD_SIGNALS):
            gpu.release(gpu.allocate(nbytes, self.machine.current_stream(gpu.index)))
        raise HostMemoryError(
            f"{gpu.device} could hold {nbytes} more bytes, but this machine cannot: "
            "the simulation keeps every tensor in host memory"
        ) from error


def _is_special(value: Any) -> bool:
    """True of sparse and nested tensors, which have other kernels."""
    return isinstance(value, torch.Tensor) and (value.layout is not _STRIDED or value.is_nested)
