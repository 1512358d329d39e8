"""Lowered graphs are kept for the next run."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._functorch import config as functorch_config

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab.cli.main import main
from pytorch_memlab.simulation.machine.torch_release import RELEASE

pytestmark = pytest.mark.skipif(RELEASE < (2, 9), reason="compiled from torch 2.9 on")

SOURCE = """
def step(x):
    y = x.sin().sum(0)
    return (x * y) @ x
"""


def step_at(line: int, tmp_path: Path) -> Any:
    """The function of ``SOURCE``, so many lines lower in its file."""
    path = tmp_path / "model.py"
    text = "\n" * line + SOURCE
    path.write_text(text)
    names: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), names)
    return names["step"]


def lines_of(step: Any, gpu: str = "h100") -> tuple[dict[int, tuple[Any, ...]], int]:
    """The table of a step's two calls, by line, and the graphs that Inductor lowered for it."""
    from torch._inductor.graph import GraphLowering

    lowered: list[None] = []
    run = GraphLowering.run

    def counted(self: Any, *args: Any) -> Any:
        lowered.append(None)
        return run(self, *args)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(GraphLowering, "run", counted)
        with simulate(gpu, compute=True), LineProfiler(step) as profiler:
            compiled = torch.compile(step, dynamic=False)
            for size in (16, 32):
                x = torch.linspace(0, 1, size * size).view(size, size)
                torch.testing.assert_close(compiled(x.cuda()).cpu(), step(x))
            (table,) = profiler.display(step, columns=("kept", "freed", "temporary")).report.tables
    first = table.function.first_line
    return {line - first: values for line, values in table.rows.items()}, len(lowered)


def test_a_second_run_lowers_nothing_and_has_the_lines_of_its_own_file(tmp_path: Path) -> None:
    fresh, lowered = lines_of(step_at(0, tmp_path))
    assert lowered == 2
    assert [values for values in fresh.values() if any(values)]
    assert lines_of(step_at(7, tmp_path)) == (fresh, 0)


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_a_graph_that_may_overwrite_saved_tensors_is_another_one(order: tuple[bool, ...]) -> None:
    size = 2048
    scores = 4 * size * size

    def program(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.T).exp().sin().sum()

    def rise_of_backward(donated: bool) -> int:
        torch.compiler.reset()
        with functorch_config.patch(donated_buffer=donated), simulate("h100", compute=False):
            x, step = torch.ones(size, 8, device="cuda", requires_grad=True), torch.compile(program)
            step(x).backward()  # from now on, both threads have their workspaces
            loss = step(x)
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            loss.backward()
            return torch.cuda.max_memory_allocated() - before

    rises = {donated: rise_of_backward(donated) for donated in order}

    # The gradient of the scores overwrites them; the gradients of both factors come later.
    assert rises == {True: 2 * 4 * size * 8 + 512, False: scores + 512}


@pytest.mark.parametrize("is_within", [True, False])
def test_a_fresh_cache_has_no_graph_of_before_and_keeps_none(
    tmp_path: Path, is_within: bool
) -> None:
    # Programs import it before anything is compiled.
    from torch._inductor.graph import GraphLowering
    from torch._inductor.utils import fresh_inductor_cache

    counts: list[int] = []
    lowered: list[None] = []
    run = GraphLowering.run

    def counted(self: Any, *args: Any) -> Any:
        lowered.append(None)
        return run(self, *args)

    def call() -> None:
        torch.compiler.reset()
        lowered.clear()
        torch.compile(lambda x: x.sin().sum(0) * 2, dynamic=False)(torch.ones(16, device="cuda"))
        counts.append(len(lowered))

    def simulated() -> Any:
        return simulate("h100", compute=False)

    outer, inner = (nullcontext, simulated) if is_within else (simulated, nullcontext)
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(GraphLowering, "run", counted)
        with simulated():
            call()
            call()
        before = kept_files(tmp_path)
        with outer(), fresh_inductor_cache(dir=str(tmp_path)), inner():
            call()
            call()
        with outer(), fresh_inductor_cache(dir=str(tmp_path)), inner():
            call()
        with simulated():
            call()
    assert counts == [1, 0, 1, 0, 1, 0]
    assert len(before) == 1
    assert kept_files(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


FRESH_SCRIPT = """
import os, sys, torch
from torch._inductor.utils import fresh_inductor_cache
with fresh_inductor_cache(dir=sys.argv[1]):
    step = torch.compile(lambda x: x.sin().sum(0))
    print(step(torch.ones(64, 64, device="cuda")).shape)
print(os.listdir(sys.argv[1]))
"""


def test_a_dry_run_leaves_nothing_of_a_fresh_cache_on_the_disk(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    script = tmp_path / "script.py"
    script.write_text(FRESH_SCRIPT)
    assert main(["run", "--dry-run", str(script), str(temporary)]) == 0
    assert "torch.Size([64])\n[]\n" in capfd.readouterr().out
    assert list(temporary.iterdir()) == []
    assert kept_files(tmp_path) == {}


def test_another_gpu_has_other_graphs(tmp_path: Path) -> None:
    lines_of(step_at(0, tmp_path))
    assert lines_of(step_at(0, tmp_path), "a100")[1] == 2


SCRIPT = """
import torch
step = torch.compile(lambda x: x.sin().sum(0))
print(step(torch.ones(64, 64, device="cuda")).shape)
"""


def test_a_dry_run_keeps_graphs_and_leaves_those_of_real_gpus_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    of_gpus = tmp_path / "inductor"
    of_gpus.mkdir()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(of_gpus))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert main(["run", "--dry-run", str(script)]) == 0
    assert "torch.Size([64])" in capfd.readouterr().out
    assert not [file for _, _, files in os.walk(of_gpus) for file in files]
    kept = tmp_path / "cache" / "pytorch_memlab" / "compiled"
    assert len([file for _, _, files in os.walk(kept) for file in files]) == 1


def kept_files(tmp_path: Path) -> dict[Path, int]:
    """The files of graphs with their bytes."""
    root = tmp_path / "cache" / "pytorch_memlab" / "compiled"
    return {path: path.stat().st_size for path in root.rglob("*") if path.is_file()}


def call_in_simulation(size: int) -> None:
    with simulate("h100", compute=False):
        torch.compile(lambda x: x.sin().sum(0) * 2, dynamic=False)(
            torch.ones(size, size, device="cuda")
        )


def new_files(tmp_path: Path, size: int) -> set[Path]:
    before = set(kept_files(tmp_path))
    call_in_simulation(size)
    return set(kept_files(tmp_path)) - before


def test_the_graphs_that_were_not_used_for_longest_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytorch_memlab.simulation.compiled import graph_cache

    (first,), (second,), (third,) = (new_files(tmp_path, size) for size in (16, 17, 18))
    for age, path in enumerate((third, second, first)):
        os.utime(path, ns=(10**18 + age, 10**18 + age))
    assert new_files(tmp_path, 18) == set()  # used again: it is the newest
    assert third.stat().st_mtime_ns > 10**18 + 2
    size = max(kept_files(tmp_path).values())
    monkeypatch.setattr(graph_cache, "MOST_BYTES", 3 * size + size // 2)
    (fourth,) = new_files(tmp_path, 19)
    assert set(kept_files(tmp_path)) == {first, third, fourth}
    assert not second.parent.exists()  # no empty folder stays
    monkeypatch.setattr(graph_cache, "MOST_BYTES", 0)
    new_files(tmp_path, 20)
    assert kept_files(tmp_path) == {}


FULL_DISK = """
import resource, signal, sys
sys.dont_write_bytecode = True  # half a file of byte code would stay
import torch
from pytorch_memlab.cli.main import main

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
sys.exit(main(["run", "--dry-run", sys.argv[1]]))
"""


@pytest.mark.skipif(os.name != "posix", reason="limits of a process")
def test_a_full_disk_keeps_nothing_and_says_so_once(tmp_path: Path) -> None:
    script, starter = tmp_path / "script.py", tmp_path / "starter.py"
    script.write_text(SCRIPT + SCRIPT.replace("64, 64", "32, 32").replace("import torch", ""))
    starter.write_text(FULL_DISK)
    done = subprocess.run(
        [sys.executable, "-B", str(starter), str(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "torch.Size([64])" in done.stdout
    assert "torch.Size([32])" in done.stdout
    assert done.stderr.count("compiled graphs are not kept for the next run: ") == 1
    assert "Traceback" not in done.stderr
    assert kept_files(tmp_path) == {}


TWO = """
import sys
import torch
from pytorch_memlab import simulate
from pytorch_memlab.simulation.compiled import graph_cache

graph_cache.MOST_BYTES = 100_000
sys.stdin.readline()
for size in range(16, 22):
    with simulate("h100", compute=False):
        step = torch.compile(lambda x: x.sin().sum(0) * 2, dynamic=False)
        step(torch.ones(size, size, device="cuda"))
    print(torch.cuda.is_available(), size)
"""


def test_two_processes_write_and_remove_at_the_same_time(tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(TWO)
    processes = [
        subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        printed, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        assert len(printed.splitlines()) == 6
        assert "not kept" not in errors
        assert "Traceback" not in errors
    assert sum(kept_files(tmp_path).values()) <= 100_000
