"""Private names of ``torch._inductor``: it lowers graphs for the simulated GPU, and runs nothing.

Inductor's wrapper is Python: it allocates each buffer, calls libraries and Triton's kernels, and
frees what nothing needs any more. `WrapperProgram` runs it on simulated GPUs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch._dynamo.exc import RestartAnalysis, SkipFrame
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._inductor import (
    compile_fx,
    config,
    constant_folding,
    cudagraph_trees,
    scheduler,
    select_algorithm,
)
from torch._inductor.codecache import code_hash, output_code_log
from torch._inductor.fx_passes import joint_graph
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import ComputedBuffer, OperationBuffer
from torch.fx import GraphModule
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils import _triton

from ..._common.frames.compiled_code import Frames, compiled_code
from ..._common.patching.patches import Patches
from ..machine.machine import Machine
from . import graph_cache, padding
from .labelled_fakes import OnCPU
from .program_frames import frames_of, with_fused

_CONFIG = {
    "compile_threads": 1,  # no kernel is compiled
    "fx_graph_cache": True,
    "fx_graph_remote_cache": False,
}

CUDA_GRAPHS = "triton.cudagraphs"
"""The option that records CUDA graphs."""

_LEFT_OUT = ("max_autotune", "max_autotune_gemm")
"""Options that choose libraries or templates by time."""

_MORE_CONFIGURATIONS = "max_autotune_pointwise"
"""All that ``max_autotune`` is for kernels without a library: only their timing takes memory."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """A graph whose wrapper was made."""

    text: str  # of the wrapper
    lines: Mapping[str, Frames]  # of the program that each buffer comes from, by its name
    constants: Mapping[str, Any]  # attributes that are tensors
    is_backward: bool
    source: GraphModule  # the graph before the passes of Inductor that write in place


Run = Callable[[list[Any]], Any]
"""Runs a compiled graph on its inputs, which it takes out of the list."""


def install(
    machine: Machine,
    patches: Patches,
    folder: str,  # that keeps lowered graphs for the next process
    program_of: Callable[[Lowered], Run],  # makes a function of a lowered graph
    # makes one of a graph that Inductor fails to lower, True if it is no backward pass
    instead_of: Callable[[BaseException, GraphModule, bool], Run],
) -> None:
    """Let Inductor lower graphs for simulated GPUs, until undone."""
    _set_options(machine, patches)
    _fold_constants_on_cpu(patches)
    _lower_graphs(patches, folder, program_of, instead_of)


def _set_options(machine: Machine, patches: Patches) -> None:
    for module, values in ((config, _CONFIG), (functorch_config, {"enable_autograd_cache": False})):
        changed = module.patch(values)
        changed.__enter__()
        patches.before_undo(partial(changed.__exit__, None, None, None))
    patches.before_undo(cudagraph_trees.reset_cudagraph_trees)
    patches.set(scheduler, "has_triton", lambda: True)
    patches.set(_triton, "triton_hash_with_backend", lambda: "simulated")
    patches.set(select_algorithm, "PyCodeCache", _Templates)
    padding.install(machine, patches)


def _fold_constants_on_cpu(patches: Patches) -> None:
    @patches.around(constant_folding.ConstantFolder, "run_node")
    def fold(original: Any, self: Any, node: Any) -> Any:
        with OnCPU():  # type: ignore[no-untyped-call]
            return original(self, node)

    @patches.around(joint_graph.UniformValueConstantFolder, "_add_peephole_patterns")
    def add_patterns(original: Any, self: Any) -> None:
        with OnCPU():  # type: ignore[no-untyped-call]
            original(self)


def _lower_graphs(
    patches: Patches,
    folder: str,
    program_of: Callable[[Lowered], Run],
    instead_of: Callable[[BaseException, GraphModule, bool], Run],
) -> None:
    """Make a function of each graph that Inductor lowers, or fails to lower."""
    sources: list[GraphModule] = []

    @patches.around(compile_fx, "_compile_fx_inner")
    def compile(original: Any, module: GraphModule, *args: Any, **kwargs: Any) -> Any:
        # No Python of it is written before a graph runs eagerly.
        source: GraphModule = _LazyGraphModule(module, copy.deepcopy(module.graph))
        sources.append(source)
        try:
            # A default device of the program is not for what Inductor computes while it lowers.
            with compiled_code.compiling(), torch.device("cpu"):
                return original(module, *args, **kwargs)
        except (RestartAnalysis, SkipFrame):
            raise
        except Exception as error:
            return make_boxed_func(instead_of(error, source, not kwargs.get("is_backward")))
        finally:
            sources.pop()

    @patches.around(GraphLowering, "_compile_to_module_lines")
    def make_module(_original: Any, self: Any, code: Any) -> Any:
        if GraphLowering.save_output_code is not None:
            GraphLowering.save_output_code(code.value)
        output_code_log.debug("Output code: \n%s", code.value)
        kept = code.value, _origins(self, sources[-1]), self.is_backward
        self.cache_key, self.cache_path, self.cache_linemap = "simulated", "", kept
        return SimpleNamespace(call=load(kept, self.constants), __file__="", runner=None)

    def load(kept: tuple[str, dict[str, list[str]], bool], constants: Mapping[str, Any]) -> Run:
        text, origins, is_backward = kept
        source = sources[-1]
        lines = _lines(origins, source)
        return program_of(Lowered(text, lines, constants, is_backward, source))

    graph_cache.install(patches, folder, load)


class _Templates:
    """Stands for the modules of Triton templates, which are loaded to be timed alone."""

    @staticmethod
    def load(source: str, *_args: Any, **_kwargs: Any) -> Any:
        return SimpleNamespace(__file__="", key=code_hash(source))


def without_timing(backend: Any) -> tuple[Any, bool]:
    """A backend that chooses no library by time; True if the one given would choose so."""
    # The new one also records graphs as a whole.
    left_out = frozenset(name for name in _LEFT_OUT if backend.config.get(name))
    options = {name: value for name, value in backend.config.items() if name not in left_out}
    if "max_autotune" in left_out:
        options[_MORE_CONFIGURATIONS] = True
    if options.get(CUDA_GRAPHS, config.triton.cudagraphs):
        options["graph_partition"] = False
    if options != backend.config:
        backend = copy.copy(backend)
        backend.config = options
    return backend, bool(left_out)


def graphs_not_recorded() -> int:
    """The number of compiled graphs that Inductor did not make CUDA graphs of, as asked."""
    return counters["inductor"]["cudagraph_skips"]


def _origins(lowered: Any, source: GraphModule) -> dict[str, list[str]]:
    """Names of the nodes of a graph that each buffer comes from, its own line's first."""
    places = {node: place for place, node in enumerate(lowered.graph.nodes)}
    nodes = {node.name: node for node in source.graph.nodes}
    alike = {node.meta.get("stack_trace"): node.name for node in source.graph.nodes}
    origins: dict[str, list[str]] = {}
    for name, buffer in lowered.name_to_buffer.items():
        if not isinstance(buffer, OperationBuffer):  # what an op writes to, and makes nothing
            continue
        ranked = sorted(buffer.get_origins(), key=lambda node: places.get(node, -1), reverse=True)
        traces = [
            (node.name, trace)
            for node in (buffer.get_origin_node(), *ranked)
            if node is not None and (trace := node.meta.get("stack_trace"))
        ]
        # Nodes that a pass made have the stacks of those that they replace.
        names = [
            node if node in nodes and nodes[node].meta.get("stack_trace") == trace else alike[trace]
            for node, trace in traces
            if trace in alike
        ]
        origins[name] = names if isinstance(buffer, ComputedBuffer) else names[:1]
    return origins


def _lines(origins: Mapping[str, list[str]], source: GraphModule) -> dict[str, Frames]:
    """The lines of the program that each buffer of a graph comes from, by its name."""
    frames = {
        node.name: frames_of(node.meta.get("stack_trace") or "") for node in source.graph.nodes
    }
    return {
        name: with_fused(frames[names[0]], [frames[other] for other in names[1:]])
        for name, names in origins.items()
        if names and frames[names[0]]
    }
