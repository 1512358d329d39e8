"""TorchScript inside a simulation: it compiles what is replaced, and makes tensors on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.jit._builtins

from ..._common.patches import Patches
from ..machine.machine import Machine


def install(machine: Machine, patches: Patches) -> None:
    """Let scripted functions run as on the GPU, until undone.

    The compiler knows PyTorch's functions by their identity, from a table that it fills once, so
    this must come before anything of ``torch`` is replaced. Scripted code asks C++ for a tensor's
    device, which is the CPU; the arguments of the call show which GPU it means.
    """
    patches.set(torch.jit._builtins, "_builtin_table", {**torch.jit._builtins._get_builtin_table()})
    for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod):
        patches.set(kind, "__call__", _called(machine, kind.__call__))


def make_known(old: Callable[..., Any], new: Callable[..., Any]) -> None:
    """Let the compiler take a replacement for what it replaces, until ``install`` is undone."""
    table = torch.jit._builtins._get_builtin_table()
    if id(old) in table:
        table[id(new)] = table[id(old)]


def _called(machine: Machine, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(script: Any, *args: Any, **kwargs: Any) -> Any:
        with machine.thread.call_context(args, kwargs):
            return original(script, *args, **kwargs)

    return call
