"""Frames of PyTorch's memory history in files that Inductor wrote."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytorch_memlab.cli.main import main
from pytorch_memlab.history.generated_code import frames_of
from pytorch_memlab.history.holders import peak_holders
from pytorch_memlab.history.model import Frame
from pytorch_memlab.history.snapshot import history_of, read_snapshot
from pytorch_memlab.simulation.machine.torch_release import RELEASE

WRAPPER = """
    def call(self, args):
        arg0_1, = args
        with torch.cuda._DeviceGuard(0):
            buf0 = empty_strided_cuda((8, 8), (8, 1), torch.float32)
            # Topologically Sorted Source Nodes: [y], Original ATen: [aten.sin]
            raw_stream0 = get_raw_stream(0)
            triton_poi_fused_sin_0.run(arg0_1, buf0, 64, stream=raw_stream0)
            buf1 = empty_strided_cuda((8, 8), (8, 1), torch.float32)
            # Topologically Sorted Source Nodes: [y, z], Original ATen: [aten.sin, aten.mm]
            extern_kernels.mm(buf0, arg0_1, out=buf1)
            del buf0
        return (buf1, )
"""


def frame(filename: str, line: int, name: str, **more: str) -> dict[str, Any]:
    return {"filename": filename, "line": line, "name": name, **more}


DIGITS = "lqrstuvwxyz234567abcdefghijklmnopqrstuvwxyz23456723"
FOLDERS = ("torchinductor_me/ab/cabcdefgh234.py", f"cache/lq/c{DIGITS}.py")


@pytest.mark.parametrize("path", FOLDERS)
@pytest.mark.parametrize("name", ["call", "partition_0"])
def test_a_frame_of_generated_code_has_the_name_of_its_kernel(
    path: str, name: str, tmp_path: Path
) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(WRAPPER)
    assert [frames_of(frame(str(file), line, name)) for line in (5, 9, 11, 12)] == [
        (Frame("", 0, "compiled code: triton_poi_fused_sin_0 of y"),),
        (Frame("", 0, "compiled code: extern_kernels.mm of y, z"),),
        (Frame("", 0, "compiled code: extern_kernels.mm of y, z"),),
        (Frame("", 0, "compiled code"),),
    ]


def test_a_file_that_is_gone_is_compiled_code_and_other_files_stay() -> None:
    gone = frame("/tmp/torchinductor_you/xx/cxxabc.py", 102, "call")
    assert frames_of(gone) == (Frame("", 0, "compiled code"),)
    for own in ("/home/me/model.py", "/home/me/lq/clqueue.py", f"/home/me/ab/c{DIGITS}.py"):
        assert frames_of(frame(own, 3, "call")) == (Frame(own, 3, "call"),)


TRACE = """\
  File "/home/me/train.py", line 9, in forward
    return self.block(x)
  File "/home/me/model.py", line 4, in block
    return x.relu()
"""


def test_a_frame_of_a_graph_module_has_the_lines_of_its_op() -> None:
    file = "fx_generated_3f2a.py"
    traced = frame(file, 7, "forward", fx_node_name="relu", fx_original_trace=TRACE)
    assert frames_of(traced) == (
        Frame("", 0, "compiled code: relu"),
        Frame("/home/me/model.py", 4, "block"),
        Frame("/home/me/train.py", 9, "forward"),
    )
    for filename in (file, "<eval_with_key>.12"):
        assert frames_of(frame(filename, 7, "forward")) == (Frame("", 0, "compiled code"),)


def snapshot_of(*stacks: list[dict[str, Any]]) -> dict[str, Any]:
    """A snapshot whose blocks were made in these stacks, the first one of 1 MiB and so on."""
    events, blocks, address = [], [], 2**30
    for size, frames in enumerate(stacks, 1):
        events.append(
            {"action": "alloc", "addr": address, "size": size * 2**20, "stream": 0}
            | {"time_us": size, "frames": frames}
        )
        blocks.append(
            {"address": address, "size": size * 2**20, "requested_size": size * 2**20}
            | {"state": "active_allocated", "frames": frames}
        )
        address += size * 2**20
    segment: dict[str, Any] = {
        "device": 0,
        "address": 2**30,
        "total_size": address - 2**30,
        "stream": 0,
    }
    segment |= {"segment_type": "large", "allocated_size": address - 2**30, "blocks": blocks}
    return {"segments": [segment], "device_traces": [events], "allocator_settings": {}}


LIBRARY = "/venv/lib/python3.11/site-packages/torch/_inductor/output_code.py"


def test_a_snapshot_of_another_machine_names_lines_and_never_a_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Behind the file's frame are those that PyTorch found; without them the caller's line counts.

    The backward pass has its own thread, which no line of the program calls.
    """
    generated = frame(f"/tmp/torchinductor_you/lq/c{DIGITS}.py", 102, "call")
    library = frame(LIBRARY, 763, "__call__")
    found = [frame("/home/you/model.py", 21, "forward"), frame("/home/you/train.py", 8, "step")]
    caller = frame("/home/you/train.py", 30, "main")
    path = tmp_path / "snapshot.pickle"
    stacks = ([generated, *found, library, caller], [generated, library, caller])
    path.write_bytes(pickle.dumps(snapshot_of(*stacks, [generated, library])))
    assert main(["peak", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "torchinductor" not in printed
    assert DIGITS[:8] not in printed
    sizes = {
        (one.file, one.line, one.function): one.size
        for one in peak_holders(history_of(pickle.loads(path.read_bytes()))).by_line()
    }
    assert sizes == {
        ("/home/you/model.py", 21, "forward"): 2**20,
        ("/home/you/train.py", 30, "main"): 2 * 2**20,
        ("", 0, "compiled code"): 3 * 2**20,
    }


def test_an_entry_may_say_which_compiled_region_ran_and_what_the_program_called_it(
    tmp_path: Path,
) -> None:
    """The keys are those of ``torch/csrc/cuda/Module.cpp``; 2.14 has annotations too."""
    own = [frame("/home/you/train.py", 30, "main")]
    generated = [frame("/tmp/torchinductor_you/xx/cxxabc.py", 102, "call"), *own]
    region = "Torch-Compiled Region: 0/1"
    entries: list[tuple[str, str, list[dict[str, Any]] | None]] = [
        (region, "", generated),
        (region, "", own),  # not in the wrapper: between its graphs
        (region, "weights", None),
        ("Torch-Compiled Region", "", None),  # of older releases
        ("N/A", "weights", None),
        ("N/A", "weights", own),
        ("N/A", "", None),
    ]
    snapshot = snapshot_of(*[frames or [] for _, _, frames in entries])
    events = snapshot["device_traces"][0]
    for event, (context, metadata, frames) in zip(events, entries, strict=True):
        event |= {"compile_context": context, "user_metadata": metadata}
        if frames is None:
            del event["frames"]
    first = events[0]
    events.append(first | {"action": "annotate", "user_metadata": "saved for the backward pass"})
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    train = Frame("/home/you/train.py", 30, "main")
    for history in (history_of(snapshot), read_snapshot(path)):
        log = history.devices[0].events
        assert [history.stacks[one] for one in log.stacks[: len(entries)]] == [
            (Frame("", 0, "compiled code [0/1]"), train),
            (train,),
            (Frame("", 0, "compiled code [0/1]"),),
            (Frame("", 0, "compiled code"),),
            (Frame("", 0, "weights"),),
            (train,),
            (),
        ]
        assert peak_holders(history).peak.active == sum(range(1, 8)) * 2**20


def test_the_kernel_stays_behind_the_region(tmp_path: Path) -> None:
    file = tmp_path / FOLDERS[0]
    file.parent.mkdir(parents=True)
    file.write_text(WRAPPER)
    snapshot = snapshot_of([frame(str(file), 5, "call")])
    snapshot["device_traces"][0][0]["compile_context"] = "Torch-Compiled Region: 2/0"
    assert history_of(snapshot).stacks[-1] == (
        Frame("", 0, "compiled code [2/0]: triton_poi_fused_sin_0 of y"),
    )


COMPILED = """
import json, sys
import torch

stacks = []

@torch.library.custom_op("memlab_test::product", mutates_args=())
def product(x: torch.Tensor) -> torch.Tensor:
    profiler = torch._C._profiler
    stacks.append(profiler.gather_traceback(python=True, script=False, cpp=False))
    return x @ x

product.register_fake(torch.empty_like)

def inner(x):
    return product(x)  # the line

def step(x):
    y = x @ x
    return inner(y)

torch.compile(step)(torch.ones(8, 8))
print(json.dumps(torch._C._profiler.symbolize_tracebacks(stacks)[0]))
"""


@pytest.mark.skipif(RELEASE < (2, 9), reason="older releases have other frames there")
def test_pytorch_puts_lines_of_the_program_behind_a_frame_of_its_compiler(tmp_path: Path) -> None:
    """No kernel is compiled here: the graph has library calls alone."""
    script = tmp_path / "script.py"
    script.write_text(COMPILED)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert done.returncode == 0, done.stderr
    frames = json.loads(done.stdout)
    is_generated = [str(tmp_path / "cache") in one["filename"] for one in frames]
    start = is_generated.index(True)
    stack = history_of(snapshot_of(frames[start:])).stacks[1]
    assert stack[0] == Frame("", 0, "compiled code: memlab_test.product.default of product_default")
    line = COMPILED.splitlines().index("    return product(x)  # the line") + 1
    assert stack[1] == Frame(str(script), line, "inner")
    (holder,) = peak_holders(history_of(snapshot_of(frames[start:]))).by_line()
    assert (holder.line, holder.function) == (line, "inner")
