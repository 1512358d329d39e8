"""Recording: histories become traces that replay, and every workload runs under simulation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from recorded_programs.memory_history import UnknownHistoryError, context_of, trace_of
from recorded_programs.streams import load
from recorded_programs.workloads import WORKLOADS
from support.python_process import run_python

from pytorch_memlab.simulation import replay, simulate

ROOT = Path(__file__).parents[2]
MB = 2**20
BASE = 0x7000_0000_0000

FRAMES = [
    {"name": "at::native::empty_cuda(c10::ArrayRef<long>)", "filename": "Memory.cpp", "line": 3},
    {"name": "at::_ops::bmm::redispatch(at::Tensor&)", "filename": "Ops.cpp", "line": 1},
    {"name": "at::_ops::matmul::call(at::Tensor&)", "filename": "Ops.cpp", "line": 9},
    {"name": "torch::autograd::generated::BmmBackward0::apply()", "filename": "F.cpp", "line": 2},
    {"name": "einsum", "filename": "/venv/site-packages/torch/functional.py", "line": 7},
    {"name": "forward", "filename": "/home/me/model.py", "line": 21},
    {"name": "main", "filename": "/home/me/train.py", "line": 5},
]


def segment(*blocks):
    """A segment of 2 MiB for small blocks: each a size in bytes, and what was requested or None."""
    return {
        "device": 0,
        "address": BASE,
        "total_size": 2 * MB,
        "stream": 0,
        "segment_type": "small",
        "blocks": [
            {
                "size": size,
                "requested_size": requested or 0,
                "state": "inactive" if requested is None else "active_allocated",
            }
            for size, requested in blocks
        ],
    }


def event(action, address, size, **more):
    return {"action": action, "addr": address, "size": size, "stream": 0, **more}


@pytest.fixture
def snapshots():
    """A block of 4 bytes exists; one of 1,000 is allocated; then the first one is freed."""
    before = {"segments": [segment((512, 4), (2 * MB - 512, None))]}
    after = {
        "segments": [segment((512, None), (1024, 1000), (2 * MB - 1536, None))],
        "device_traces": [
            [
                event("alloc", BASE + 512, 1000, frames=FRAMES),
                event("free_requested", BASE, 4),
                event("free_completed", BASE, 4),
                event("snapshot", 0, 0),
            ]
        ],
    }
    return before, after


def test_a_history_becomes_a_trace_that_replays(snapshots):
    trace = trace_of(*snapshots, {"PYTORCH_CUDA_ALLOC_CONF": ""}, {"gpu": "NVIDIA L4"})

    common = {"address": BASE, "size": 2 * MB, "stream": 0, "pool": "small"}
    context = {
        "op": "bmm",
        "node": "BmmBackward0",
        "kernel": "at::native::empty_cuda",
        "where": "model.py:21:forward",
        "lib": "functional.py:einsum",
    }
    assert trace == {
        "settings": {"PYTORCH_CUDA_ALLOC_CONF": ""},
        "versions": {"gpu": "NVIDIA L4"},
        "initial": [{**common, "blocks": [[BASE, 512, 1, 4], [BASE + 512, 2 * MB - 512, 0]]}],
        "events": [
            ["alloc", BASE + 512, 1000, 0, context],
            ["free", BASE, 4, 0],
        ],
        "final": [
            {
                **common,
                "blocks": [
                    [BASE, 512, 0],
                    [BASE + 512, 1024, 1],
                    [BASE + 1536, 2 * MB - 1536, 0],
                ],
            }
        ],
    }
    result = replay(trace)
    assert (result.allocations, result.mismatches, result.final_matches) == (1, [], True)


def test_a_history_of_segments_that_grow_on_a_full_gpu_becomes_a_trace_that_replays():
    history = [
        event("segment_map", BASE, 2 * MB),
        event("alloc", BASE, 512),
        {"action": "oom", "device_free": MB, "size": 40 * MB, "stream": 0},
        event("free_completed", BASE, 512),
        event("segment_unmap", BASE, 2 * MB),
    ]
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    after = {"segments": [], "device_traces": [history]}
    trace = trace_of({"segments": []}, after, settings, total_memory=3 * MB)

    assert trace["events"] == [
        ["segment_map", BASE, 2 * MB, 0],
        ["alloc", BASE, 512, 0, {}],
        ["oom", MB, 40 * MB, 0],
        ["free", BASE, 512, 0],
        ["segment_unmap", BASE, 2 * MB, 0],
    ]
    result = replay(trace)
    assert (result.mismatches, result.final_matches) == ([], True)
    [error] = result.out_of_memory
    assert error.message.startswith(
        "CUDA out of memory. Tried to allocate 40.00 MiB. "
        "GPU 0 has a total capacity of 3.00 MiB of which 1024.00 KiB is free. Of the"
    )


def test_expandable_segments_are_told():
    before = {"segments": [{**segment((2 * MB, 4)), "is_expandable": True}]}
    trace = trace_of(before, {"segments": [], "device_traces": [[]]}, {})
    assert trace["initial"][0]["expandable"] is True


def test_events_of_an_unknown_kind_cannot_be_told(snapshots):
    before, after = snapshots
    after["device_traces"][0].append(event("segment_moved", BASE, 2 * MB))
    with pytest.raises(UnknownHistoryError, match="segment_moved"):
        trace_of(before, after, {})


def test_an_allocation_without_frames_has_no_context():
    assert context_of([]) == {}


def snapshot_of(segments):
    """The segments of a trace, as ``torch.cuda.memory._snapshot()`` has them."""
    return [
        {
            "device": 0,
            "address": one["address"],
            "total_size": one["size"],
            "stream": one["stream"],
            "segment_type": one["pool"],
            "blocks": [
                {
                    "size": size,
                    "requested_size": requested[0] if requested else 0,
                    "state": "active_allocated" if allocated else "inactive",
                }
                for _, size, allocated, *requested in one["blocks"]
            ],
        }
        for one in segments
    ]


@pytest.mark.parametrize(
    "name", ["attention_from_start", "lm_small_ctx128_forward", "lm2.7b_ctx128_train"]
)
def test_a_recorded_trace_survives_being_a_snapshot(name):
    recorded = load(name)
    history = []
    for kind, address, size, stream, *_ in recorded["events"]:
        if kind == "free":
            history.append(event("free_requested", address, size))
        action = "free_completed" if kind == "free" else kind
        history.append({**event(action, address, size), "stream": stream})

    trace = trace_of(
        {"segments": snapshot_of(recorded["initial"])},
        {"segments": snapshot_of(recorded["final"]), "device_traces": [history]},
        recorded["settings"],
    )

    assert [one[:4] for one in trace["events"]] == [one[:4] for one in recorded["events"]]
    assert trace["initial"] == recorded["initial"]
    assert trace["final"] == recorded["final"]
    result = replay(trace)
    assert result.mismatches == []
    assert result.final_matches


def test_without_a_gpu_the_recorder_says_so():
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA GPU")
    done = run_python([ROOT / "test" / "gpu" / "record.py"])
    assert done.returncode == 1
    assert done.stderr == "recording needs a CUDA GPU, and this machine has none\n"


MLP = 4 * (2 * 512 * 2048 + 2048 + 512)

KEPT = {
    "mlp_sgd_momentum": 3 * MLP,
    "mlp_adam_for_loop": 4 * MLP,
    "mlp_adamw_foreach": 4 * MLP,
    "mlp_adamw_fused": 4 * MLP + 4 * 512,  # the steps of four parameters are on the GPU
    "cnn_batch_norm": 169_984,
    "lstm": 4 * 4 * (4 * 256 * (128 + 256 + 2) + 4 * 256 * (256 + 256 + 2)),
    "gru": 4 * 4 * (3 * 256 * (128 + 256 + 2) + 3 * 256 * (256 + 256 + 2)),
    "transformer_encoder_layer": 4 * 4 * (12 * 256 * 256 + 13 * 256),
    "gpt_block_flash_bf16": 2 * 4 * (12 * 256 * 256 + 13 * 256),
    "gpt_block_efficient_fp32": 4 * 4 * (12 * 256 * 256 + 13 * 256),
    "gpt_block_math_fp32": 4 * 4 * (12 * 256 * 256 + 13 * 256),
    "attention_written_out": 6 * 4 * 4 * 512 * 64,
    "embedding_sparse_gradient": 4 * 10_000 * 128,
    "gan_step": 4_478_976,
    "unet_step": 481_280,
    "dropout_layer_norm": 530_432,
    "sorting_and_indexing": 2 * 4 * 256 * 1024 + 4 * 256 * 16,
    "mlp_autocast_bf16": 4 * MLP,
    "transformer_autocast_bf16": 4 * 4 * (12 * 256 * 256 + 13 * 256),
    "checkpointed_blocks": 3 * 4 * 4 * (12 * 256 * 256 + 13 * 256),
}
"""Bytes allocated in the end: parameters, gradients and optimizer state, in blocks of 512 bytes."""


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_leaves_what_it_keeps_and_no_more(name):
    with simulate("h100"):
        kept = WORKLOADS[name]()
        peak = torch.cuda.max_memory_allocated()
        torch._C._cuda_clearCublasWorkspaces()
        left = torch.cuda.memory_allocated()
        storages = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in kept}
        del kept

    assert left == KEPT[name] == sum(-(-nbytes // 512) * 512 for nbytes in storages.values())
    assert left < peak < 2**30
