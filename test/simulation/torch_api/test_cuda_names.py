"""Every public name of torch.cuda and its kind answers, or is refused by name."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from pytorch_memlab import simulate
from pytorch_memlab.errors import UnsupportedCUDACallError
from pytorch_memlab.simulation.machine.torch_release import RELEASE

OF_SDPA = (False, False)
"""Whether it is causal, and whether heads share their keys."""

MODULES = [
    *("torch.cuda" + name for name in ("", ".amp", ".comm", ".gds", ".graphs", ".green_contexts")),
    *("torch.cuda." + name for name in ("jiterator", "memory", "nccl", "nvtx", "profiler")),
    *("torch.cuda." + name for name in ("random", "sparse", "streams", "tunable")),
    *("torch.accelerator" + name for name in ("", ".graphs", ".memory")),
    *("torch.backends." + name for name in ("cuda", "cudnn", "cudnn.rnn")),
]


def _two() -> list[torch.Tensor]:
    return [torch.ones(4, device="cuda:0"), torch.ones(4, device="cuda:1")]


def _wide() -> list[torch.Tensor]:
    return [torch.ones(8, device="cuda:0"), torch.ones(8, device="cuda:1")]


def _attention() -> Any:
    query = torch.ones(1, 2, 8, 8, device="cuda", dtype=torch.float16)
    return torch.backends.cuda.SDPAParams(query, query, query, None, 0.0, *OF_SDPA)


def _linear() -> torch.nn.Module:
    return torch.nn.Linear(4, 4, device="cuda")


def _storage() -> torch.UntypedStorage:
    return torch.ones(4, device="cuda").untyped_storage()


ARGUMENTS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "AcceleratorError": lambda: ("why",),
    "CudaError": lambda: (2,),
    "DeferredCudaCallError": lambda: ("why",),
    "ExternalStream": lambda: (3,),
    "GdsFile": lambda: (__file__, os.O_RDONLY),
    "OutOfMemoryError": lambda: ("why",),
    "SDPAParams": lambda: (*[torch.ones(1, 1, 1, 1)] * 3, None, 0.0, *OF_SDPA),
    "SDPBackend": lambda: (0,),
    "SMPartition": lambda: (None, 0),
    "Unserializable": lambda: (None,),
    "StreamContext": lambda: (torch.cuda.Stream(),),
    "all_gather": lambda: (_two(), _wide()),
    "all_reduce": lambda: (_two(),),
    "allow_fp16_bf16_reduction_math_sdp": lambda: (False,),
    "broadcast": lambda: (torch.ones(4, device="cuda"), [0, 1]),
    "broadcast_coalesced": lambda: ([torch.ones(4, device="cuda")], [0, 1]),
    "caching_allocator_alloc": lambda: (512,),
    "caching_allocator_delete": lambda: (torch.cuda.caching_allocator_alloc(512),),
    "can_device_access_peer": lambda: (0, 1),
    "can_use_cudnn_attention": lambda: (_attention(),),
    "can_use_efficient_attention": lambda: (_attention(),),
    "can_use_flash_attention": lambda: (_attention(),),
    "change_current_allocator": lambda: (types.SimpleNamespace(allocator=lambda: None),),
    "check_error": lambda: (0,),
    "classproperty": lambda: (len,),
    "cuFFTPlanCache": lambda: (0,),
    "cuFFTPlanCacheAttrContextProp": lambda: (len, "why"),
    "custom_bwd": lambda: (len,),
    "device": lambda: (1,),
    "device_index": lambda: (1,),
    "device_of": lambda: (torch.ones(1, device="cuda"),),
    "enable_cudnn_sdp": lambda: (True,),
    "enable_flash_sdp": lambda: (True,),
    "enable_math_sdp": lambda: (True,),
    "enable_mem_efficient_sdp": lambda: (True,),
    "export_dot": lambda: ("graph.dot",),
    "export_graph_data": lambda: ("graph.pickle",),
    "gather": lambda: (_two(),),
    "gds_deregister_buffer": lambda: (_storage(),),
    "gds_register_buffer": lambda: (_storage(),),
    "get_device_properties": lambda: (0,),
    "get_cudnn_mode": lambda: ("LSTM",),
    "get_stream_from_external": lambda: (3,),
    # With dropout torch 2.6 calls an op by an argument that it lacks.
    "init_dropout_state": lambda: (0.5 if RELEASE >= (2, 7) else 0.0, True, 1, {}),
    "torch.cuda.profiler.init": lambda: (os.devnull,),
    "init_rank": lambda: (1, b"", 0),
    "is_acceptable": lambda: (torch.ones(1, device="cuda"),),
    "is_available": lambda: (),
    "manual_seed": lambda: (0,),
    "manual_seed_all": lambda: (0,),
    "mark": lambda: ("here",),
    "mgpu_tune_gemm_in_file": lambda: ("*.csv", 1),
    "range": lambda: ("here",),
    "range_end": lambda: (0,),
    "range_push": lambda: ("here",),
    "range_start": lambda: ("here",),
    "reduce": lambda: (_two(),),
    "register_graph_capture_end_hook": lambda: (len,),
    "register_graph_capture_start_hook": lambda: (len,),
    "register_graph_destroy_hook": lambda: (len,),
    "register_graph_instantiate_hook": lambda: (len,),
    "register_graph_replay_end_hook": lambda: (len,),
    "register_graph_replay_start_hook": lambda: (len,),
    "reduce_add": lambda: (_two(),),
    "reduce_add_coalesced": lambda: ([[one] for one in _two()],),
    "reduce_scatter": lambda: (_wide(), _two()),
    "scatter": lambda: (torch.ones(4), [0, 1]),
    "set_cublaslt_requested_algo_count": lambda: (1,),
    "set_device": lambda: (1,),
    "set_device_idx": lambda: (1,),
    "set_device_index": lambda: (1,),
    "set_filename": lambda: ("results.csv",),
    "set_max_tuning_duration": lambda: (1,),
    "set_max_tuning_iterations": lambda: (1,),
    "set_numerical_check_tolerances": lambda: (True,),
    "set_per_process_memory_fraction": lambda: (0.5,),
    "set_rng_state": lambda: (torch.cuda.get_rng_state(),),
    "set_rng_state_all": lambda: (torch.cuda.get_rng_state_all(),),
    "set_rotating_buffer_size": lambda: (1,),
    "set_stream": lambda: (torch.cuda.Stream(),),
    "set_sync_debug_mode": lambda: (0,),
    "stream": lambda: (torch.cuda.Stream(),),
    "torch.accelerator.set_stream": lambda: (torch.Stream(1),),
    "torch.cuda.nccl.broadcast": lambda: (_two(),),
    "torch.cuda.nccl.is_available": lambda: (_two(),),
    "tune_gemm_in_file": lambda: ("results.csv",),
    "write_file_on_exit": lambda: (True,),
    "graph": lambda: (torch.cuda.CUDAGraph(),),
    "make_graphed_callables": lambda: (_linear(), (torch.ones(2, 4, device="cuda"),)),
    "use_mem_pool": lambda: (torch.cuda.MemPool(),),
    "MemPoolContext": lambda: (torch.cuda.MemPool(),),  # of older releases
}
"""What a callable is called with that needs arguments, by its name or its full name."""


def _public(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """Names that a module of torch defines, and those of the simulation in their place."""
    names = {*vars(module), *getattr(module, "__all__", ())}
    for name in sorted(name for name in names if not name.startswith("_")):
        value = getattr(module, name)
        home = getattr(value, "__module__", None) or "torch"
        is_ours = str(home).startswith(("torch", "pytorch_memlab"))
        if is_ours and not isinstance(value, types.ModuleType) and value is not torch.Tensor:
            yield name, value


def _needs_arguments(value: Any) -> bool:
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return True
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(one.default is one.empty and one.kind not in optional for one in parameters)


def _fault(full_name: str, value: Any) -> str | None:
    """The fault in the answer of a name; None if it answers or is refused by name."""
    name = full_name.rpartition(".")[2]
    make = ARGUMENTS.get(full_name, ARGUMENTS.get(name))
    if make is None and _needs_arguments(value):
        return "is new: say in ARGUMENTS with which arguments it is called"
    try:
        result = value(*make()) if make is not None else value()
        if isinstance(result, contextlib.AbstractContextManager):
            with result:
                pass
    except UnsupportedCUDACallError as error:
        text = str(error)
        is_named = name in text.partition(" is not covered")[0] or name in _REFUSED_INSIDE
        return None if is_named else f"is refused by another name: {text}"
    except BaseException as error:
        if _REFUSED_BY_TORCH.get(full_name) == str(error):
            return None
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None


_REFUSED_BY_TORCH = {
    "torch.cuda.profiler.init": "CUDA12+ does not need profiler initialization!",
    "torch.cuda.tunable.tune_gemm_in_file": "TunableOp is not enabled",
}
if RELEASE < (2, 7):  # it asserts without words
    _REFUSED_BY_TORCH |= dict.fromkeys(
        (f"torch.cuda.tunable.{name}" for name in ("tune_gemm_in_file", "mgpu_tune_gemm_in_file")),
        "",
    )
"""What releases that have such a name say on a GPU too."""

_REFUSED_INSIDE = {
    "GdsFile": "its handle is refused",
    "caching_allocator_disabled": "switching the allocator off is",
    "mgpu_tune_gemm_in_file": "the first call that it makes is",
}


@pytest.fixture
def gpus() -> Iterator[Any]:
    cpu_state = torch.get_rng_state()
    with simulate("24GiB", count=2) as machine:
        yield machine
    torch.set_rng_state(cpu_state)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("module_name", MODULES)
def test_every_public_name_answers_or_is_refused_by_name(gpus: Any, module_name: str) -> None:
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError:
        pytest.skip(f"this release of torch has no {module_name}")
    faults = {}
    for name, value in _public(module):
        if callable(value):
            fault = _fault(f"{module_name}.{name}", value)
            if fault is not None:
                faults[name] = fault
            torch.cuda.set_device(0)
            torch.cuda.set_stream(torch.cuda.default_stream())
    assert faults == {}


ATTRIBUTES = {
    "torch.backends.cuda.matmul": (
        "allow_tf32",
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
    ),
    "torch.backends.cuda.cufft_plan_cache": ("size", "max_size", "clear"),
    "torch.backends.cudnn": (
        "allow_tf32",
        "benchmark",
        "benchmark_limit",
        "deterministic",
        "enabled",
    ),
}


@pytest.mark.parametrize("owner", ATTRIBUTES)
def test_every_setting_of_the_backends_can_be_read_and_written_back(gpus: Any, owner: str) -> None:
    parent, _, last = owner.rpartition(".")
    settings = getattr(importlib.import_module(parent), last)
    for name in ATTRIBUTES[owner]:
        try:
            value = getattr(settings, name)
        except UnsupportedCUDACallError as error:
            assert f"{last}.{name}" in str(error)  # noqa: PT017
            continue
        if callable(value):
            value()
        elif value is not None:
            setattr(settings, name, value)
            assert getattr(settings, name) == value


KINDS = {
    "torch.Stream": (torch.Stream, lambda: torch.Stream("cuda")),
    "torch.Event": (torch.Event, lambda: torch.Event("cuda", enable_timing=True)),
    "torch.cuda.Stream": (torch.cuda.Stream, lambda: torch.cuda.Stream()),
    "torch.cuda.Event": (torch.cuda.Event, lambda: torch.cuda.Event(enable_timing=True)),
}
"""The classes of torch, read before a simulation replaces them, and how one is made."""

OF_CUDA = {
    "torch.cuda.Stream": {"cuda_stream", "priority", "priority_range", "query", "device"},
    "torch.cuda.Event": {"cuda_event", "device", "event_id", "query", "ipc_handle"},
}
"""Members that their C++ bases have in a build with CUDA (``torch/_C/__init__.pyi``)."""

MEMBERS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "elapsed_time": lambda: (_recorded(),),
    "from_ipc_handle": lambda: (torch.device("cuda"), b""),
    "wait_event": lambda: (_recorded(),),
    "wait_stream": lambda: (torch.cuda.Stream(),),
}


def _recorded() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _member_fault(made: Any, member: str) -> str | None:
    try:
        value = getattr(made, member)
        if callable(value):
            value(*MEMBERS.get(member, lambda: ())())
    except UnsupportedCUDACallError as error:
        return None if member in str(error) else str(error)
    except BaseException as error:
        return repr(error)
    return None


@pytest.mark.parametrize("name", KINDS)
def test_every_member_of_streams_and_events_answers(gpus: Any, name: str) -> None:
    kind, make = KINDS[name]
    members = {one for one in dir(kind) if not one.startswith("_")} | OF_CUDA.get(name, set())
    made = make()
    assert not isinstance(made, kind)
    if hasattr(made, "record"):
        made.record()
    faults = {member: _member_fault(made, member) for member in sorted(members)}
    assert {member: fault for member, fault in faults.items() if fault is not None} == {}


def test_a_simulated_gpu_is_one_domain_of_which_no_part_is_chosen():
    green_contexts = pytest.importorskip("torch.cuda.green_contexts")
    if not hasattr(green_contexts, "SMPartition"):
        pytest.skip("torch has partitions of a GPU from 2.15 on")
    with simulate("24GiB"):
        assert green_contexts.get_num_locality_domains() == 1
        assert green_contexts.is_localization_supported() is False
        with pytest.raises(
            UnsupportedCUDACallError, match=r"SMPartition\.from_device is not covered"
        ):
            green_contexts.SMPartition.from_device()
