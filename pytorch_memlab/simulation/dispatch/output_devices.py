"""Where an op's results live, and which mixtures of devices CUDA refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..machine.machine import HOST
from ..machine.op_arguments import tensors_in

if TYPE_CHECKING:
    from ..machine.machine import Machine
    from ..ops.op_info import OpInfo

_CPU = torch.device("cpu")
_untyped_storage = torch._C.TensorBase.untyped_storage


class OutputDevices:
    """Finds the device of an op's results.

    They live where the op's labelled arguments live, or where an explicit ``device`` says. C++
    takes every tensor for one of the host: what a composite op makes inside with the options of
    its input lives where the arguments of the program's own call live, and what it moved to
    those options has stayed on the host and may be mixed.

    Args:
        machine: whose labels these are.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def of(
        self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[int, dict[str, Any], bool]:
        """Where an op's results live.

        Args:
            func: the op.
            info: its record.
            args: its arguments.
            kwargs: its keyword arguments.

        Returns:
            index of the GPU or ``HOST``, keyword arguments that the host understands, and
            whether the result is to be pinned.

        Raises:
            RuntimeError: arguments of devices that CUDA does not mix, in its words.
        """
        thread = self._machine.thread
        device = kwargs.get("device")
        pin = bool(kwargs.get("pin_memory"))
        if pin:
            kwargs = {**kwargs, "pin_memory": False}
        if device is not None and device.type != "cpu":
            if device.type != "cuda":  # the meta device, say
                return HOST, kwargs, False
            return self._machine.index_of(device), {**kwargs, "device": _CPU}, False
        if thread.target is not None:
            return thread.target, kwargs, pin
        index = self._common_place(func, info, args, kwargs)
        if device is not None and device.type == "cpu":
            takes_none = next(tensors_in(args, kwargs), None) is None
            if pin and takes_none:  # a hook that saves on the host: nothing else can be pinned
                return HOST, kwargs, True
            index = self._where_a_factory_means(index, takes_none)
        return index, kwargs, pin and index == HOST

    def _common_place(
        self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> int:
        known = self._machine.allocations.known
        index = HOST
        on_host = None
        for tensor in tensors_in(args, kwargs):
            try:
                allocation = known.get(_untyped_storage(tensor)._cdata)
            except (NotImplementedError, RuntimeError, ValueError):
                allocation = self._machine.allocations.find(tensor)
            if allocation is None:
                if tensor.dim() > 0:
                    on_host = tensor
            elif index == HOST:
                index = allocation.gpu.index
            elif index != allocation.gpu.index and not (info.is_foreach or info.takes_cpu_tensors):
                raise _mixed(func, index, f"cuda:{allocation.gpu.index}")
        is_mixed = on_host is not None and index != HOST and not info.takes_cpu_tensors
        if is_mixed and self._did_the_program_give(on_host):
            raise _mixed(func, index, "cpu")
        return index

    def _did_the_program_give(self, tensor: torch.Tensor | None) -> bool:
        """Whether a tensor of the host comes from the program, not from inside a composite op."""
        call = self._machine.thread.call
        if tensor is None or call is None:
            return torch._C._current_autograd_node() is None
        try:
            given = {_untyped_storage(one)._cdata for one in tensors_in(*call)}
            return _untyped_storage(tensor)._cdata in given
        except (NotImplementedError, RuntimeError, ValueError):
            return True

    def _where_a_factory_means(self, index: int, takes_no_tensor: bool) -> int:
        """Where ``device=cpu`` means: the host if the program said so, else the call's device."""
        thread = self._machine.thread
        if thread.call is None:
            in_backward = torch._C._current_autograd_node() is not None
            return thread.last if takes_no_tensor and in_backward else index
        args, kwargs = thread.call
        if kwargs.get("device") is not None:
            return HOST
        if index != HOST:
            return index
        places = (self._machine.place_of(tensor) for tensor in tensors_in(args, kwargs))
        return next((place for place in places if place != HOST), HOST)


def _mixed(func: Any, index: int, other: str) -> RuntimeError:
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"cuda:{index} and {other}! (when checking arguments of {func._schema.name})"
    )
