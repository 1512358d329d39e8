"""Devices: where numbers come from. Nothing else in the package reads an allocator's counters."""

from __future__ import annotations

import torch

from .._common.process.made_once import WeakRegistry, made_once
from .._common.text.quoted import quoted
from ..errors import UnknownDeviceError
from ..simulation.inspect import Machine, active
from . import accelerator, cuda
from .device import NO_APPROXIMATIONS, Approximations, Device, Stats, no_approximations

__all__ = [
    "NO_APPROXIMATIONS",
    "Approximations",
    "Device",
    "Stats",
    "find_devices",
    "get_device",
    "no_approximations",
    "simulated_machine",
]


_simulated_devices: WeakRegistry[Device] = WeakRegistry()


def find_devices() -> list[Device]:
    """All devices of this process: the GPUs, else the CPU. It initialises none."""
    machine = simulated_machine()
    if machine is not None:
        return [_simulated(machine, index) for index in range(len(machine.known_gpus))]
    if torch.cuda.is_available():
        return [_cuda(index) for index in range(torch.cuda.device_count())]
    kind = accelerator.accelerator_type()
    if kind is not None:
        return [_accelerator(kind, index) for index in range(torch.accelerator.device_count())]
    return [_cpu()]


def get_device(spec: int | str | torch.device | None = None) -> Device:
    """One device of this process, the current one for None; else ``UnknownDeviceError``."""
    devices = find_devices()
    if spec == "cpu" or spec == torch.device("cpu"):
        return _cpu()
    if isinstance(spec, bool) or not isinstance(spec, (int, str, torch.device, type(None))):
        raise UnknownDeviceError(
            f"a device is an int, a string or a torch.device, not {quoted(spec)}"
        )
    name = _name_of(spec, devices[0].name)
    for device in devices:
        if device.name == name:
            return device
    names = [device.name for device in devices]
    choices = "cpu" if names == ["cpu"] else f"{', '.join(names)}, and cpu"
    raise UnknownDeviceError(f"no device {quoted(spec)} here: there is {choices}")


def _name_of(spec: int | str | torch.device | None, first: str) -> str:
    """The name that a device has in reports."""
    kind = first.partition(":")[0]
    if isinstance(spec, str) and not spec.isdecimal():
        try:
            spec = torch.device(spec)
        except RuntimeError:
            return str(spec)
    index: int | None
    if isinstance(spec, torch.device):
        kind, index = spec.type, spec.index
    else:
        index = None if spec is None else int(spec)
    if index is None:
        is_on = torch.cuda.is_available() and torch.cuda.is_initialized()
        index = torch.cuda.current_device() if is_on else 0
    return kind if kind == "cpu" else f"{kind}:{index}"


def simulated_machine() -> Machine | None:
    return active.machine


def _simulated(machine: Machine, index: int) -> Device:
    from .simulated import SimulatedApproximations, SimulatedDevice

    gpu = machine.known_gpus[index]

    def make() -> Device:
        values = machine.values
        reads, assumed = (None, None) if values is None else (values.reads, values.assumed)
        approximations = SimulatedApproximations(machine.approximations[index], reads)
        return SimulatedDevice(gpu, approximations, machine.kept_files, assumed)

    return _simulated_devices.of(gpu, make)


_cuda = made_once(cuda.CudaDevice)
_accelerator = made_once(accelerator.AcceleratorDevice)


@made_once
def _cpu() -> Device:
    from .cpu import CpuDevice

    return CpuDevice()
