"""The device of an op's outputs, and the mixtures of devices that CUDA refuses."""

from __future__ import annotations

from typing import Final

import torch

from ..._common.torch.storages import storages_of
from ..machine.machine import Machine
from ..machine.op_arguments import Args, tensors_in
from ..machine.refused_calls import mixed_devices
from ..machine.simulated_gpu import SimulatedGPU
from .dispatched_call import DispatchedCall
from .node_devices import gpu_of_zeros

_CPU = torch.device("cpu")

_COMPARE_RESULTS_FIRST: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("all", "any", "aminmax", "cumprod", "cumsum", "max", "mean", "min", "norm", "prod"),
        *("renorm", "sum"),
    )
)
"""Structured ops whose generated code compares the device of ``out=`` before their kernel does."""


class OutputDevices:
    """Finds the device of an op's results."""

    # They live where the op's labelled arguments live, or where an explicit ``device`` says. C++
    # takes every tensor for a CPU tensor. So what a composite op makes with the options of its
    # input lives where the arguments of the call of the program live, and what it moved to those
    # options has stayed on the CPU and may be mixed.

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def find(self, call: DispatchedCall) -> None:
        """Set the GPU of a call's outputs, its arguments for the CPU, and whether to pin."""
        kwargs, thread = call.kwargs, self._machine.thread
        if not kwargs:  # as most calls
            call.outputs_on = (
                self._common_gpu(call)
                if thread.output_device is None
                else self._machine.find_gpu(thread.output_device)
            )
            return
        device = kwargs.get("device")
        pin = bool(kwargs.get("pin_memory"))
        if pin:
            call.kwargs = kwargs = {**kwargs, "pin_memory": False}
        if device is not None and device.type != "cpu":
            if device.type != "cuda":  # the meta device, say
                return
            if pin:
                raise RuntimeError("Only dense CPU tensors can be pinned")
            call.outputs_on = self._machine.find_gpu(device)
            call.kwargs = {**kwargs, "device": _CPU}
            return
        if thread.output_device is not None:
            call.outputs_on, call.pins_output = self._machine.find_gpu(thread.output_device), pin
            return
        gpu = self._common_gpu(call)
        if device is not None:
            takes_none = not call.tensors
            if pin and takes_none:  # a hook that saves on the CPU: nothing else can be pinned
                call.pins_output = True
                return
            gpu = self._gpu_meant_by_cpu(gpu, takes_none)
        call.outputs_on, call.pins_output = gpu, pin and gpu is None

    def of_lists_differ(self, args: Args) -> bool:
        """True if lists have tensors of several devices."""
        gpu_of = self._machine.gpu_of
        lists = tuple(arg for arg in args if isinstance(arg, (list, tuple)))
        return len({gpu_of(tensor) for tensor in tensors_in(lists, {})}) > 1

    def _common_gpu(self, call: DispatchedCall) -> SimulatedGPU | None:
        """The GPU of the tensors among a call's arguments."""
        info, gpu = call.info, None
        on_cpu = number = None
        for tensor, allocation in zip(call.tensors, call.allocations, strict=True):
            if allocation is None:
                if tensor.is_meta:
                    return None  # so is the result, whatever the others are
                if tensor.dim() > 0 or not info.takes_cpu_numbers:
                    on_cpu = tensor
                else:
                    number = tensor
            elif gpu is None:
                gpu = allocation.gpu
            elif gpu is not allocation.gpu and not info.takes_cpu_tensors:
                raise mixed_devices(call.op, gpu, str(allocation.gpu.device))
        if gpu is None or info.takes_cpu_tensors:
            return gpu
        if on_cpu is None and number is not None and info.written:
            on_cpu = self._number_written_in(call)
        if on_cpu is None:
            return gpu
        if self._is_from_program(on_cpu):
            raise _refusal(call, gpu, on_cpu)
        return gpu

    def _number_written_in(self, call: DispatchedCall) -> torch.Tensor | None:
        """A number of the CPU that an op would write a GPU's result to."""
        written = call.info.written_in(call.args, call.kwargs)
        return next((tensor for tensor in written if self._machine.gpu_of(tensor) is None), None)

    def _is_from_program(self, tensor: torch.Tensor) -> bool:
        """True if a CPU tensor comes from the program, not from inside a composite op."""
        # What a composite op computed comes from the program too if that gave it tensors of the
        # CPU.
        call = self._machine.thread.call
        if call is None:
            return torch._C._current_autograd_node() is None
        gpu_of = self._machine.gpu_of
        gave_some = None in map(gpu_of, tensors_in(*call))
        return gave_some or not storages_of(tensor)

    def _gpu_meant_by_cpu(
        self, gpu: SimulatedGPU | None, takes_no_tensor: bool
    ) -> SimulatedGPU | None:
        """The device that ``device=cpu`` means, which C++ also passes for labelled tensors."""
        thread = self._machine.thread
        if thread.call is None:
            node = torch._C._current_autograd_node() if takes_no_tensor else None
            return gpu if node is None else gpu_of_zeros(self._machine, node)
        args, kwargs = thread.call
        if kwargs.get("device") is not None:
            return None
        if gpu is not None:
            return gpu
        gpus = map(self._machine.gpu_of, tensors_in(args, kwargs))
        return next((gpu for gpu in gpus if gpu is not None), None)


def _refusal(call: DispatchedCall, gpu: SimulatedGPU, on_cpu: torch.Tensor) -> RuntimeError:
    op, args = call.op, call.args
    name = op._schema.name
    if name in _COMPARE_RESULTS_FIRST and any(value is on_cpu for value in call.kwargs.values()):
        return RuntimeError(f"Expected out tensor to have device {gpu.device}, but got cpu instead")
    if name == "aten::add" and torch.sparse_coo in {term.layout for term in args[:2]}:
        role = "self" if args[0] is on_cpu else "other"
        words = "CUDA, but got CPU"  # ``SparseCUDATensorMath.cu``
        if args[0].layout is torch.strided:
            words = "a CUDA tensor, but got a CPU tensor"
        return RuntimeError(f"add: expected '{role}' to be {words}")
    return mixed_devices(op, gpu, "cpu")
