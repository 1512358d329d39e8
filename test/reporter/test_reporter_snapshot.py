"""Snapshots of the memory reporter: lines of saved tensors, categories, every byte explained."""

from __future__ import annotations

import sys
import textwrap
import warnings

import pytest
import torch
from support.reporter_programs import CUDA, MIB, PROGRAMS, reconciled
from support.saved_tensors import knows_saved_tensors

from pytorch_memlab.errors import UsageError
from pytorch_memlab.mem_reporter import MemReporter
from pytorch_memlab.render.memory_report import notes
from pytorch_memlab.reporter import reconciliation
from pytorch_memlab.reporter.memory_snapshot import MemorySnapshot, TensorRow
from pytorch_memlab.reporter.rows import Rows
from pytorch_memlab.simulation import simulate
from pytorch_memlab.tensors.lines import SourceLine, line_of
from pytorch_memlab.tensors.saved import name_of, saved_by_graphs


@pytest.fixture
def gpu():
    with simulate("24GiB") as machine:
        yield machine


def rows_on_gpu(snapshot: MemorySnapshot) -> dict[str, TensorRow]:
    return {row.name: row for row in snapshot.on(CUDA).rows}


SAVING = [pytest.param(check, marks=knows_saved_tensors) for check in PROGRAMS[:2]]
"""Programs whose rows are of tensors that autograd saved."""


@pytest.mark.parametrize("check", [*SAVING, *PROGRAMS[2:]], ids=lambda check: check.__name__)
def test_program(gpu, check):
    check()


@pytest.mark.parametrize("check", SAVING, ids=lambda check: check.__name__)
def test_program_run_for_its_shapes(check):
    with simulate("h100", compute=False):
        check()


@knows_saved_tensors
def test_a_saved_tensor_has_the_size_with_which_the_named_op_saves_it(gpu):
    leaf = torch.ones(4, 6, device="cuda", requires_grad=True)
    out = leaf.exp().t().sin().sum()
    rows = rows_on_gpu(MemReporter().snapshot()).values()
    assert [(row.saved_by, row.size) for row in rows if row.saved_by] == [("ExpBackward0", (4, 6))]
    assert out.requires_grad


# Lines of saved tensors


@knows_saved_tensors
def test_report_says_the_line_too(gpu, capsys):
    leaf = torch.ones(8, device="cuda", requires_grad=True)
    with MemReporter.record_lines():
        out = (leaf * 2).exp()  # line
    out = out.sum()
    MemReporter().report(device=CUDA)

    with open(__file__, encoding="utf-8") as source:
        line = next(n for n, text in enumerate(source, 1) if text.endswith("# line\n"))
    assert f"saved by ExpBackward0 (test_reporter_snapshot.py:{line})" in capsys.readouterr().out
    del out


def lines_of_nodes(tensor: torch.Tensor) -> dict[str, str | None]:
    """Line of each node of a graph that saved something."""
    lines = {}
    for node, _ in saved_by_graphs([tensor.grad_fn]):
        line = line_of(node)
        lines[name_of(node)] = line and str(line)
    del lines["AccumulateGrad"]
    return lines


@knows_saved_tensors
def test_a_program_that_records_nothing_has_no_lines():
    leaf = torch.ones(8, requires_grad=True)
    out = leaf.exp()

    assert lines_of_nodes(out) == {"ExpBackward0": None}


@knows_saved_tensors
def test_anomaly_mode_tells_lines():
    leaf = torch.ones(8, requires_grad=True)
    names = {"leaf": leaf}
    code = compile("\n\nout = leaf.exp()", "train.py", "exec")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            exec(code, names)

    assert lines_of_nodes(names["out"]) == {"ExpBackward0": "train.py:3"}


@knows_saved_tensors
def test_lines_of_functions_written_in_python():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor):
            ctx.save_for_backward(tensor * 3)
            return tensor * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    names = {"Double": Double, "leaf": torch.ones(8, requires_grad=True)}
    apply = vars(torch.autograd.Function)["apply"]
    with MemReporter.record_lines():
        exec(compile("\nout = Double.apply(leaf)", "train.py", "exec"), names)

    assert lines_of_nodes(names["out"]) == {"DoubleBackward": "train.py:2"}
    assert vars(torch.autograd.Function)["apply"] is apply


@knows_saved_tensors
def test_every_node_of_one_call_has_the_line_of_the_program():
    leaf = torch.ones(4, 4, requires_grad=True)
    names = {"leaf": leaf, "torch": torch}
    program = "\n\n\nout = torch.nn.functional.cross_entropy(leaf, leaf.argmax(1))"
    with MemReporter.record_lines():
        exec(compile(program, "train.py", "exec"), names)

    assert lines_of_nodes(names["out"]) == {
        "LogSoftmaxBackward0": "train.py:4",
        "NllLossBackward0": "train.py:4",
    }


@knows_saved_tensors
def test_lines_stay_those_of_the_first_maker():
    leaf = torch.ones(4, requires_grad=True)
    names = {"leaf": leaf}
    with MemReporter.record_lines():
        exec(compile("middle = leaf.exp()", "one.py", "exec"), names)
        exec(compile("\nout = middle.sin()", "two.py", "exec"), names)
    del names["middle"]

    assert lines_of_nodes(names["out"]) == {
        "ExpBackward0": "one.py:1",
        "SinBackward0": "two.py:2",
    }


@knows_saved_tensors
def test_recorded_history_tells_the_line_of_a_block(gpu):
    torch.cuda.memory._record_memory_history("state", context="state")
    leaf = torch.ones(8, device="cuda", requires_grad=True)
    out = leaf.exp().sum()
    rows = rows_on_gpu(MemReporter().snapshot())
    first = sys._getframe().f_lineno - 3

    assert rows["leaf"].line == SourceLine(__file__, first)
    assert f"saved by ExpBackward0 (test_reporter_snapshot.py:{first + 1})" in rows
    del out


@knows_saved_tensors
def test_what_a_python_function_keeps_besides_is_saved_by_it(gpu):
    class Keeping(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor):
            ctx.mask = tensor.exp()
            return tensor * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    out = Keeping.apply(torch.ones(1000, device="cuda", requires_grad=True))
    row = next(row for row in rows_on_gpu(MemReporter().snapshot()).values() if row.saved_by)

    assert (row.saved_by, row.nbytes) == ("KeepingBackward", 4000)
    assert row.category == "activations saved for backward"
    del out


# Categories


@knows_saved_tensors
def test_an_activation_that_a_variable_holds_is_still_one(gpu):
    weight = torch.nn.Parameter(torch.ones(1000, device="cuda"))
    held = weight * 2
    inputs = torch.ones(500, device="cuda")
    out = (held.exp(), inputs * weight[:500])
    rows = rows_on_gpu(MemReporter().snapshot())

    assert {name: row.category for name, row in rows.items()} == {
        "weight": "parameters",
        "held": "inputs and other tensors",
        "inputs": "inputs and other tensors",
        "out[0]": "activations saved for backward",
        "out[1]": "inputs and other tensors",
    }
    assert rows["out[0]"].saved_by == "ExpBackward0"
    assert rows["inputs"].saved_by == "MulBackward0"
    del out


def test_buffers_and_parameters_of_modules_that_the_reporter_was_not_given(gpu):
    norm = torch.nn.BatchNorm1d(3).cuda()
    rows = rows_on_gpu(MemReporter().snapshot())

    assert {name: row.category for name, row in rows.items()} == {
        "norm.weight": "parameters",
        "norm.bias": "parameters",
        "norm.running_mean": "buffers",
        "norm.running_var": "buffers",
        "norm.num_batches_tracked": "buffers",
    }
    del norm


# The text


@pytest.mark.knows_simulation("the words that name a simulated GPU")
@knows_saved_tensors
def test_text_of_a_whole_report(gpu):
    linear = torch.nn.Linear(1024, 1024).cuda()
    inp = torch.ones(512, 1024).cuda()
    part = inp[3:5]
    out = linear(inp * (inp + 2)).mean()
    text = str(MemReporter(linear).snapshot().on(CUDA))
    bar, thin = "=" * 79, "-" * 79

    assert text == textwrap.dedent(f"""\
        {bar}
        cuda:0: Simulated GPU (24.00 GiB), simulated
        {thin}
        parameters                                                       4.00M
          weight                                        (1024, 1024)     4.00M
          bias                                               (1024,)     4.00K
        activations saved for backward                                   2.00M
          saved by AddmmBackward0                        (512, 1024)     2.00M
        inputs and other tensors                                         2.00M
          inp                                            (512, 1024)     2.00M
          out                                                   (1,)     4.00B
          part                                             (2, 1024)     0.00B  view of inp
        {thin}
          tensors                                                        6.00M
        + saved for backward                                             2.00M
        + rounding                                                     508.00B
        + kernels' workspaces                                            8.12M
        + unknown                                                        0.00B
        = allocated                                                     16.13M
        + cached                                                         5.87M
        = reserved                                                      22.00M
        + context                                                      CONTEXT
        + other processes                                                0.00B
        = used on the device                                              USED
        {thin}""").replace("   CONTEXT", context_text()).replace("      USED", used_text())
    del part, out


def context_text() -> str:
    from pytorch_memlab.utils import readable_size

    free, total = torch.cuda.mem_get_info()
    return readable_size(total - free - torch.cuda.memory_reserved()).rjust(10)


def used_text() -> str:
    from pytorch_memlab.utils import readable_size

    free, total = torch.cuda.mem_get_info()
    return readable_size(total - free).rjust(10)


def test_the_report_names_workspaces_instead_of_a_difference(gpu, capsys):
    linear = torch.nn.Linear(1024, 1024).cuda()
    out = linear(torch.ones(4, 1024, device="cuda"))
    MemReporter(linear).report(device=CUDA)

    assert capsys.readouterr().out.splitlines()[-3:] == [
        "The allocated memory on cuda:0: 12.16M",
        "Kernels' workspaces on cuda:0: 8.12M",
        "-" * 79,
    ]
    del out


# The reconciliation


def test_workspaces_of_several_streams_and_their_end(gpu):
    matrix = torch.ones(64, 64, device="cuda")
    first = matrix @ matrix
    with torch.cuda.stream(torch.cuda.Stream()):
        second = matrix @ matrix
    reporter = MemReporter()

    assert reconciled(reporter.snapshot()).workspaces == 2 * 8_519_680
    torch._C._cuda_clearCublasWorkspaces()
    assert reconciled(reporter.snapshot()).workspaces == 0
    del first, second


@pytest.mark.knows_simulation("the memory of the process, which NVML tells")
def test_the_driver_is_reconciled(gpu):
    kept = torch.ones(5 * MIB, device="cuda")
    record = reconciled(MemReporter().snapshot())
    free, total = torch.cuda.mem_get_info()

    assert record.used == total - free
    assert record.reserved + record.context + record.others == record.used
    assert record.others == 0
    del kept


def test_every_gpu_that_holds_memory_is_reconciled_and_no_other():
    with simulate("24GiB", count=3):
        kept = torch.ones(1000, device="cuda:2")
        hidden = torch.ones(1000, device="cuda:0").untyped_storage()
        records = MemReporter().snapshot().reconciliations

    assert [(str(each.device), each.tensors, each.unknown) for each in records] == [
        ("cuda:2", 4000, 0),
        ("cuda:0", 0, 4000),
    ]
    del kept, hidden


def test_blocks_wait_for_another_stream_without_being_allocated(gpu):
    tensor = torch.ones(5 * MIB, device="cuda")
    tensor.record_stream(torch.cuda.Stream())
    del tensor
    kept = torch.ones(1000, device="cuda")
    record = reconciled(MemReporter().snapshot())

    assert (record.tensors, record.unknown) == (4000, 0)
    del kept


def test_expandable_segments_reconcile(monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    with simulate("24GiB"):
        kept = [torch.ones(1000 * each, device="cuda") for each in range(1, 300, 7)]
        del kept[3:30:2]
        assert reconciled(MemReporter().snapshot()).unknown == 0


def test_rounding_to_powers_of_two(monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "roundup_power2_divisions:1")
    with simulate("24GiB"):
        kept = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
        record = reconciled(MemReporter().snapshot())

    assert (record.tensors, record.unknown) == (5 * MIB, 0)
    del kept


def test_one_block_seen_through_two_storages_counts_once(gpu, monkeypatch):
    kept = torch.ones(1024, device="cuda")
    snapshot = MemReporter().snapshot
    rows = snapshot().on(CUDA).rows
    found: list[Rows] = []
    original = reconciliation.reconciled
    monkeypatch.setattr(
        "pytorch_memlab.mem_reporter.reconciled", lambda rows: found.append(rows) or original(rows)
    )
    snapshot()
    [whole] = found
    place = whole.tensors.index(rows[0])
    twice = Rows((*whole.tensors, rows[0]), (*whole.storages, whole.storages[place]), whole.graphs)
    [record] = reconciliation.reconciled(twice)

    assert (record.tensors, record.unknown, record.allocated) == (4096, 0, 4096)
    del kept


def test_the_cpu_has_categories_and_no_reconciliation():
    kept = torch.ones(1000)
    snapshot = MemReporter().snapshot()

    assert snapshot.reconciliations == ()
    assert snapshot.totals(torch.device("cpu"))["inputs and other tensors"] >= 4000
    del kept


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: r.report(sort_by="bytes"), "sort_by must be one of size, name, numel, not 'b"),
        (lambda r: r.report(min_size="1M"), "min_size must be a number of bytes, 0 or more, not '"),
        (lambda r: r.report(min_size=-1), "min_size must be a number of bytes, 0 or more, not -1"),
        (lambda r: r.report(device="gpu"), "no device 'gpu': "),
        (lambda r: r.leaks(2.5), "iterations must be a number or an iterable, not a float"),
        (lambda r: r.diff(1, 2), "before must be a MemorySnapshot, not a int"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(UsageError, match=f"^{message}"):
        call(MemReporter())


def test_tensors_that_python_does_not_show_are_named_as_the_reason(gpu, freeze):
    hidden = torch.ones(1000, device="cuda")
    before = MemReporter().snapshot().reconciliations[0]
    freeze()
    record = MemReporter().snapshot().reconciliations[0]

    assert (before.unknown, before.frozen_objects, [*notes(before)]) == (0, 0, [])
    assert record.unknown == 4000
    (note,) = notes(record)
    assert note == (
        f"{record.frozen_objects} objects are under gc.freeze(), where Python shows no tensors: see"
        " unknown"
    )
    assert record.frozen_objects > 0
    del hidden


@knows_saved_tensors
def test_an_allocator_that_shows_no_blocks_leaves_rounding_and_workspaces_unknown(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    kept = torch.ones(1000, device="cuda", requires_grad=True)
    out = kept.exp()
    record = reconciled(MemReporter().snapshot())

    sizes = (record.tensors, record.saved, record.rounding, record.workspaces, record.unknown)
    assert sizes == (4000, 4000, 0, 0, 2 * 4096 - 2 * 4000)
    assert (record.allocated, record.cached, record.reserved) == (8192, 2 * MIB - 8192, 2 * MIB)
    assert [*notes(record)] == [
        "this device does not show its blocks: rounding and workspaces are in unknown"
    ]
    del out


@knows_saved_tensors
def test_checkpointed_activations_are_activations(gpu):
    from torch.utils.checkpoint import checkpoint

    model = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(3)).cuda()
    hidden = torch.ones(16, 64, device="cuda")
    for layer in model:
        hidden = checkpoint(lambda inp, layer=layer: layer(inp).relu(), hidden, use_reentrant=False)
    totals = MemReporter(model).snapshot().totals(CUDA)

    assert totals["activations saved for backward"] == 3 * 16 * 64 * 4  # what each layer was given
