"""``torch.jit`` under simulation: TorchScript compiles what is replaced, and makes GPU tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.jit._builtins

from ..._common.patching.patches import Patches
from ..dispatch import flex_attention
from ..machine.machine import Machine


def install(machine: Machine, patches: Patches) -> None:
    """Let scripted functions run as on the GPU, until undone."""
    # TorchScript knows PyTorch's functions by their identity, from a table that it fills once, so
    # this must come before anything of ``torch`` is replaced. Scripted code asks C++ for a tensor's
    # device, which is the CPU; the arguments of the call show which GPU it means.
    #
    # Score functions of ``flex_attention`` are traced on the CPU (Note [Traced score functions]).
    patches.set(torch.jit._builtins, "_builtin_table", {**torch.jit._builtins._get_builtin_table()})
    for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod):

        @patches.around(kind, "__call__")
        def call_script(call: Callable[..., Any], script: Any, *args: Any, **kwargs: Any) -> Any:
            with machine.thread.call_context(args, kwargs):
                return call(script, *args, **kwargs)

    # torch._inductor.cudagraph_trees imports both where CUDA is built in; torch._dynamo.reset()
    # imports it.
    for name, value in (
        ("_cuda_CUDAAllocator_AllocatorState", _AllocatorState),
        ("_set_cached_tensors_enabled", lambda _enabled: None),
    ):
        if not hasattr(torch._C, name):
            patches.set(torch._C, name, value)
    module = sys.modules.get("torch._higher_order_ops.flex_attention")
    if hasattr(module, "create_fw_bw_graph"):
        patches.around(module, "create_fw_bw_graph")(flex_attention.trace)


def make_known(old: Callable[..., Any], new: Callable[..., Any]) -> None:
    """Let TorchScript take a replacement for what it replaces, until ``install`` is undone."""
    table = torch.jit._builtins._get_builtin_table()
    if id(old) in table:
        table[id(new)] = table[id(old)]


class _AllocatorState:
    """Saved state of a CUDA graph's private pool, of which there are none."""
