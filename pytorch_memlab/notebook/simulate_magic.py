"""``%simulate``: a simulation that lasts over cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..simulation.inspect import active

if TYPE_CHECKING:
    from ..simulation import simulate
    from ..simulation.inspect import GPU, Machine


@dataclass(frozen=True)
class _Running:
    """The simulation that is on. Equal settings give equal machines."""

    simulation: simulate
    machine: Machine
    settings: tuple[GPU, int, str]
    text: str

    def is_on(self) -> bool:
        """True unless other code has ended it."""
        return id(self.simulation) in active.simulations


_running: list[_Running] = []
"""The simulation that %simulate has turned on, if any."""


def simulate_by_words(words: list[str]) -> str:
    """Carry out the words after ``%simulate``: a GPU and its number, ``off``, or none to ask."""
    match words:
        case []:
            return _running[-1].text if _running else "no simulation is on: %simulate h100"
        case [word] if word.lower() == "off":
            was_on = bool(_running)
            _end()
            return "simulation off" if was_on else "no simulation was on"
        case [gpu] | [gpu, _]:
            count = words[1] if len(words) > 1 else "1"
            if not count.isdecimal():
                raise UsageError(f"%simulate takes a GPU and how many of it, not {count!r}")
            return _simulate(gpu, int(count))
    raise UsageError("%simulate takes a GPU and how many of it: %simulate h100 2; or off")


def end_simulation() -> None:
    """End the simulation that the magic has begun, and say so."""
    if _running:
        print(simulate_by_words(["off"]))


def _simulate(gpu: str, count: int) -> str:
    from ..simulation import simulate
    from ..simulation.inspect import find_gpu, settings_string

    settings = (find_gpu(gpu), count, settings_string())
    if _running and _running[-1].settings == settings and _running[-1].is_on():
        return f"{_running[-1].text}. It was on already: its tensors stay"
    simulation = simulate(gpu, count)  # a mistake ends no other simulation
    loses_tensors = any(True for running in _running for _ in running.machine.living())
    _end()
    machine = simulation.__enter__()
    text = f"simulating {count} x {settings[0].name}; %simulate off ends it"
    _running.append(_Running(simulation, machine, settings, text))
    return text + ". Tensors of the former GPU are CPU tensors now" * loses_tensors


def _end() -> None:
    while _running:
        _running.pop().simulation.__exit__()
