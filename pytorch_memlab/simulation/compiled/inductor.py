"""Private names of ``torch._inductor``: it lowers graphs for the simulated GPU, and runs nothing.

Inductor's wrapper is Python: it allocates each buffer, calls libraries and Triton's kernels, and
frees what nothing needs any more. `WrapperProgram` runs it on simulated GPUs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from torch._dynamo.exc import RestartAnalysis, SkipFrame
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._inductor import compile_fx, config, constant_folding, scheduler
from torch._inductor.fx_passes import joint_graph, pad_mm
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import ComputedBuffer
from torch.fx import GraphModule
from torch.utils import _triton

from ..._common.patches import Patches
from .labelled_fakes import OnCPU
from .program_frames import Frames, frames_of, with_fused

_CONFIG = {
    "compile_threads": 1,  # no kernel is compiled
    "fx_graph_cache": False,  # a real GPU must not find what has no kernels
    "fx_graph_remote_cache": False,
}

CUDA_GRAPHS = "triton.cudagraphs"
"""The option that records CUDA graphs."""

_LEFT_OUT = (
    *("max_autotune", "max_autotune_gemm", "max_autotune_pointwise", CUDA_GRAPHS),
    *("coordinate_descent_tuning",),
)
"""Options that choose by time, or record CUDA graphs."""

Lowered = Any
"""A ``GraphLowering`` whose wrapper was made."""

Run = Callable[[list[Any]], Any]
"""Runs a compiled graph on its inputs, which it takes out of the list."""


def install(
    patches: Patches,
    program_of: Callable[[Lowered, str, GraphModule], Run],
    instead_of: Callable[[BaseException, GraphModule], Run],
) -> None:
    """Let Inductor lower graphs for simulated GPUs, until undone.

    Args:
        patches: to be undone.
        program_of: makes a function of a lowered graph, its wrapper's text, and the graph before
            the passes of Inductor that write in place.
        instead_of: makes one of a graph that Inductor fails to lower.
    """
    for module, values in ((config, _CONFIG), (functorch_config, {"enable_autograd_cache": False})):
        changed = module.patch(values)
        changed.__enter__()
        patches.before_undo(partial(changed.__exit__, None, None, None))
    patches.set(scheduler, "has_triton", lambda: True)
    patches.set(_triton, "triton_hash_with_backend", lambda: "simulated")
    patches.set(pad_mm, "should_pad_bench", lambda *args, **kwargs: False)

    @patches.around(constant_folding.ConstantFolder, "run_node")
    def fold(original: Any, self: Any, node: Any) -> Any:
        with OnCPU():  # type: ignore[no-untyped-call]
            return original(self, node)

    @patches.around(joint_graph.UniformValueConstantFolder, "_add_peephole_patterns")
    def add_patterns(original: Any, self: Any) -> None:
        with OnCPU():  # type: ignore[no-untyped-call]
            original(self)

    sources: list[GraphModule] = []

    @patches.around(compile_fx, "_compile_fx_inner")
    def compile(original: Any, module: GraphModule, *args: Any, **kwargs: Any) -> Any:
        source = GraphModule(module, copy.deepcopy(module.graph))
        sources.append(source)
        try:
            return original(module, *args, **kwargs)
        except (RestartAnalysis, SkipFrame):
            raise
        except Exception as error:
            return make_boxed_func(instead_of(error, source))
        finally:
            sources.pop()

    @patches.around(GraphLowering, "_compile_to_module_lines")
    def make_module(_original: Any, self: Any, code: Any) -> Any:
        self.cache_key, self.cache_path, self.cache_linemap = "simulated", "", None
        run = program_of(self, code.value, sources[-1])
        return SimpleNamespace(call=run, __file__="", runner=None)


def without_timing(backend: Any) -> tuple[Any, frozenset[str]]:
    """An Inductor backend that chooses no kernels by time and records no CUDA graphs.

    Returns:
        the backend, and the options that were left out.
    """
    left_out = frozenset(name for name in _LEFT_OUT if backend.config.get(name))
    if not left_out:
        return backend, left_out
    backend = copy.copy(backend)
    backend.config = {name: value for name, value in backend.config.items() if name not in left_out}
    return backend, left_out


def lines_of_buffers(lowered: Lowered) -> dict[str, Frames]:
    """The lines of the program that each buffer of a graph comes from, by its name."""
    places = {node: place for place, node in enumerate(lowered.graph.nodes)}
    lines: dict[str, Frames] = {}
    for name, buffer in lowered.name_to_buffer.items():
        origins = sorted(buffer.get_origins(), key=lambda node: places.get(node, -1), reverse=True)
        nodes = [buffer.get_origin_node(), *origins]
        texts = [node.meta.get("stack_trace") for node in nodes if node is not None]
        frames = [frames_of(text) for text in texts if text]
        is_fused = isinstance(buffer, ComputedBuffer)
        lines[name] = with_fused(frames[0], frames[1:] if is_fused else []) if frames else ()
    return lines
