"""Tables name what a simulation does not know, at the line where it happened and at the end."""

from __future__ import annotations

import threading

import pytest
import torch
from support.computed_or_dry import computed_or_dry

from pytorch_memlab import LineProfiler, load, simulate
from pytorch_memlab.cli.main import main
from pytorch_memlab.errors import UnmodelledOpError
from pytorch_memlab.records import Approximation, ApproximationKind
from pytorch_memlab.render.notes import summary, texts
from pytorch_memlab.simulation.ops.core.op_info import op_info

KIB, MIB = 1024, 1024**2

GPU_NOTE = "simulated GPU: Simulated GPU (24.00 GiB) (cuda:0)"

QR = "not modelled: linalg_qr (2 calls, 1.0 KiB of outputs in all)"
NOT_COUNTED = "kernel memory of gaps::mystery not counted"
EIGH = "_linalg_eigh (1 call, 288 B of outputs)"

_library = torch.library.Library("gaps", "DEF")
for _name in ("mystery", "guess", "exact", "idle"):
    _library.define(f"{_name}(Tensor x) -> Tensor")
    _library.impl(_name, torch.clone, "CPU")
    _library.impl(_name, torch.empty_like, "Meta")

mystery, guess, exact, idle = (
    getattr(torch.ops.gaps, name) for name in ("mystery", "guess", "exact", "idle")
)


def allocates(*sizes):
    def memory(call):
        call.alloc_outputs()
        for nbytes in sizes:
            call.free_temp(call.alloc_temp(nbytes))

    return memory


@pytest.fixture(autouse=True)
def memory_models(monkeypatch):
    """``guess`` takes memory by an estimate, ``exact`` by a formula, ``idle`` needs no estimate."""
    for op, memory, is_confirmed in (
        (guess, allocates(MIB, 2 * MIB), False),
        (exact, allocates(MIB), True),
        (idle, allocates(), False),
    ):
        known = op_info(op.default)
        monkeypatch.setattr(known, "memory", memory)
        monkeypatch.setattr(known, "is_confirmed", is_confirmed)
        monkeypatch.setattr(known, "is_modelled", True)


def profiled(*functions, **options):
    """The records of functions, of which the first one runs."""
    with simulate("24GiB", **options), LineProfiler(*functions) as profiler:
        functions[0]()
    return profiler.records()


def approximations_of(records, function, device="cuda:0"):
    """Lines of a function, counted from its ``def``, with what was not known of them."""
    first = function.__code__.co_firstlineno
    [table] = [
        table for table in records.display(function).report.tables if table.device.name == device
    ]
    return {line - first: approximations for line, approximations in table.approximations.items()}


def unmodelled(calls, nbytes, name="gaps::mystery"):
    return Approximation(ApproximationKind.UNMODELLED, name, calls, nbytes)


def not_counted(peak):
    return f"cuda:0: no estimate is part of the peak of {peak}, {NOT_COUNTED}"


def estimated(calls, nbytes):
    return Approximation(ApproximationKind.ESTIMATED, "gaps::guess", calls, nbytes)


# At the line


SCRIPT = """\
import torch

op = torch.ops.gaps


def inner(x):
    return op.mystery(op.mystery(x))


def work():
    x = torch.zeros(1024, device="cuda")
    y = op.exact(op.idle(x))
    inner(x)
    op.guess(x)
    y = inner(op.guess(x))
    return y


op.mystery(torch.zeros(512, device="cuda"))
work()
"""

TABLES = """\
## inner

active_bytes reserved_bytes line  code
         all            all
        peak           peak
      12.00K         22.00M    6  def inner(x):
      20.00K         22.00M    7?     return op.mystery(op.mystery(x))

line 7: not modelled: gaps::mystery (4 calls, 16.0 KiB of outputs in all)


## work

active_bytes reserved_bytes line  code
         all            all
        peak           peak
       0.00B          2.00M   10  def work():
       4.00K          2.00M   11      x = torch.zeros(1024, device="cuda")
       1.01M          2.00M   12      y = op.exact(op.idle(x))
      16.00K          2.00M   13?     inner(x)
       2.01M         22.00M   14~     op.guess(x)
       2.01M         22.00M   15?     y = inner(op.guess(x))
       8.00K         22.00M   16      return y

line 13: not modelled: gaps::mystery (2 calls, 8.0 KiB of outputs in all)
line 14: estimated: gaps::guess (1 call, 3.0 MiB of kernel memory)
line 15: not modelled: gaps::mystery (2 calls, 8.0 KiB of outputs in all)
line 15: estimated: gaps::guess (1 call, 3.0 MiB of kernel memory)

peak 22.0 MiB reserved of 24.00 GiB: fits as far as memory is counted, 23.98 GiB free
simulated GPU: Simulated GPU (24.00 GiB) (cuda:0)
not modelled: gaps::mystery (5 calls, 18.0 KiB of outputs in all): only outputs are counted, so \
the true peak may be higher
estimated: gaps::guess (2 calls, 6.0 MiB of kernel memory in all): the true peak may differ
cuda:0: 0.5% of the peak of 2.0 MiB is exact, 99.5% (2.0 MiB) estimated, kernel memory of \
gaps::mystery not counted
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    return "script.py"


@pytest.mark.knows_simulation("approximations of ops")
@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_whole_tables(options, script, capsys):
    columns = "active_bytes.all.peak,reserved_bytes.all.peak"
    names = ["-f", "inner", "-f", "work"]
    main(["run", "--gpu", "24GiB", *names, "-c", columns, *options, script])
    assert capsys.readouterr().out == TABLES


@pytest.mark.knows_simulation("approximations of ops")
def test_a_saved_profile_has_them(script, tmp_path):
    main(["run", "--gpu", "24GiB", "-f", "inner", "-f", "work", "-o", "out.json", script])
    entries = load(tmp_path / "out.json").recorded().entries
    found = {
        str(entry.line): [
            (
                approximation.kind.value,
                approximation.name,
                approximation.calls,
                approximation.nbytes,
            )
            for approximation in entry.approximations
        ]
        for entry in entries
        if entry.approximations
    }
    assert found == {
        "7": [("unmodelled", "gaps::mystery", 4, 16 * KIB)],
        "13": [("unmodelled", "gaps::mystery", 2, 8 * KIB)],
        "14": [("estimated", "gaps::guess", 1, 3 * MIB)],
        "15": [
            ("unmodelled", "gaps::mystery", 2, 8 * KIB),
            ("estimated", "gaps::guess", 1, 3 * MIB),
        ],
    }


@pytest.mark.knows_simulation("approximations of ops")
def test_lines_that_end_before_or_begin_after_the_op_have_none():
    def work():
        x = torch.zeros(256, device="cuda")
        for _ in range(3):
            y = exact(x)
            y = mystery(x)
            del y
        return x

    assert approximations_of(profiled(work), work) == {4: (unmodelled(3, 3 * KIB),)}


@pytest.mark.knows_simulation("approximations of ops")
def test_a_line_of_a_recursive_function_counts_the_calls_below_it_as_it_counts_memory():
    def work(depth=2):
        x = mystery(torch.zeros(256, device="cuda"))
        if depth > 1:
            work(depth - 1)
        return x

    assert approximations_of(profiled(work), work) == {
        1: (unmodelled(2, 2 * KIB),),
        3: (unmodelled(1, KIB),),
    }


@pytest.mark.knows_simulation("approximations of ops")
def test_a_generator_does_not_count_what_others_do_while_it_waits():
    def numbers():
        x = torch.zeros(256, device="cuda")
        yield x
        yield mystery(x)

    def work():
        for x in numbers():
            mystery(x)

    records = profiled(work, numbers)
    assert approximations_of(records, numbers) == {3: (unmodelled(1, KIB),)}
    assert approximations_of(records, work) == {
        1: (unmodelled(1, KIB),),
        2: (unmodelled(2, 2 * KIB),),
    }


@pytest.mark.knows_simulation("approximations of ops")
def test_a_backward_pass_counts_at_the_line_that_runs_it():
    class Op(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return exact(x)

        @staticmethod
        def backward(ctx, gradient):
            return mystery(gradient)

    def work():
        x = torch.zeros(256, device="cuda", requires_grad=True)
        y = Op.apply(x)
        y.backward(torch.ones_like(y))

    assert approximations_of(profiled(work), work) == {3: (unmodelled(1, KIB),)}


@pytest.mark.knows_simulation("approximations of ops")
def test_each_gpu_has_its_own():
    def work():
        x = torch.zeros(256, device="cuda:0")
        y = torch.zeros(512, device="cuda:1")
        return mystery(y), guess(x)

    records = profiled(work, count=2)
    assert approximations_of(records, work, "cuda:0") == {3: (estimated(1, 3 * MIB),)}
    assert approximations_of(records, work, "cuda:1") == {3: (unmodelled(1, 2 * KIB),)}
    assert texts(records.display().report.notes)[1:] == (
        *summary([unmodelled(1, 2 * KIB), estimated(1, 3 * MIB)]),
        "cuda:0: 0.0% of the peak of 2.0 MiB is exact, 100% (2.0 MiB) estimated",
        f"cuda:1: no estimate is part of the peak of 4.0 KiB, {NOT_COUNTED}",
    )


@pytest.mark.knows_simulation("approximations of ops")
def test_overloads_are_one_op_and_every_result_counts():
    square = torch.zeros(16, 16)

    def work():
        matrix = square.cuda()
        q, r = torch.linalg.qr(matrix)
        torch.linalg.qr(matrix, out=(torch.empty_like(q), torch.empty_like(r)))

    [(approximation,), *_] = approximations_of(profiled(work), work).values()
    assert approximation == unmodelled(1, 2 * KIB, "linalg_qr")


@pytest.mark.knows_simulation("approximations of ops")
def test_a_line_under_several_simulations_adds_up():
    def work():
        return mystery(torch.zeros(256, device="cuda"))

    with LineProfiler(work) as profiler:
        for _ in range(3):
            with simulate("24GiB"):
                work()
    records = profiler.records()
    assert approximations_of(records, work) == {1: (unmodelled(3, 3 * KIB),)}
    assert texts(records.display().report.notes) == (
        GPU_NOTE,
        *summary([unmodelled(3, 3 * KIB)]),
        not_counted("2.0 KiB"),
    )


@pytest.mark.knows_simulation("approximations of ops")
def test_records_grow_with_ops_and_not_with_calls():
    def work():
        x = torch.zeros(1, device="cuda")
        for _ in range(200):
            mystery(x)

    records = profiled(work)
    [line] = [one for one in records._raw_line_records if one.line - 1 == first_line(work) + 2]
    assert line.approximations == (unmodelled(200, 800),)


def first_line(function):
    return function.__code__.co_firstlineno


def test_threads_lose_no_count():
    with simulate("24GiB") as machine:
        x = torch.zeros(1, device="cuda")

        def work():
            for _ in range(50):
                mystery(x)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert machine.unmodelled["gaps.mystery.default"].calls == 200


# Below all tables


@pytest.mark.knows_simulation("approximations of ops")
def test_ops_outside_every_profiled_line_are_in_the_share_of_the_peak_alone():
    def work():
        return torch.zeros(256, device="cuda")

    with simulate("24GiB"), LineProfiler(work) as profiler:
        mystery(work())
    report = profiler.display().report
    assert report.tables[0].approximations == {}
    assert texts(report.notes) == (GPU_NOTE, not_counted("2.0 KiB"))


@pytest.mark.knows_simulation("approximations of ops")
def test_ops_of_before_are_not_counted_with_those_of_profiled_lines():
    def work():
        return mystery(torch.zeros(256, device="cuda"))

    def other():
        return torch.zeros(256, device="cuda")

    with simulate("24GiB"):
        kept = work()
        with LineProfiler(work) as profiler:
            work()
        [_, note, _] = texts(profiler.display().report.notes)
        assert [note] == summary([unmodelled(1, KIB)])
        # Another profiler, and one whose function never runs, say nothing of that op.
        with LineProfiler(other) as later, LineProfiler(work) as idle:
            other()
        assert texts(later.display().report.notes) == (GPU_NOTE,)
        [reason, note] = texts(idle.display().report.notes)
        assert reason.endswith("work did not run while profiled")
        assert note == GPU_NOTE
    del kept


@pytest.mark.knows_simulation("approximations of ops")
@computed_or_dry
def test_ops_of_torch_without_an_entry_are_named_largest_first(compute):
    def work():
        square = torch.zeros(8, 8, device="cuda")
        torch.linalg.qr(square)
        torch.linalg.qr(square)
        torch.linalg.eigvalsh(square)

    assert texts(profiled(work, compute=compute).display().report.notes) == (
        GPU_NOTE,
        f"{QR}, {EIGH}: only outputs are counted, so the true peak may be higher",
        (
            "cuda:0: no estimate is part of the peak of 1.5 KiB, "
            "kernel memory of linalg_qr and _linalg_eigh not counted"
        ),
    )


@pytest.mark.knows_simulation("approximations of ops")
def test_copies_and_elementwise_ops_need_no_entry():
    def work():
        x = torch.randn(64, 64).cuda()
        (x.relu() + 1).mul_(2).clone().cpu()

    report = profiled(work).display().report
    assert texts(report.notes) == (GPU_NOTE,)
    assert report.tables[0].approximations == {}


def test_more_than_five_are_counted():
    [note] = summary([unmodelled(n, 1024 * n, f"op{n}") for n in (1, 2, 3, 4, 5, 6, 7)])
    assert note == (
        "not modelled: op7 (7 calls, 7.0 KiB of outputs in all), "
        "op6 (6 calls, 6.0 KiB of outputs in all), op5 (5 calls, 5.0 KiB of outputs in all), "
        "op4 (4 calls, 4.0 KiB of outputs in all), "
        "op3 (3 calls, 3.0 KiB of outputs in all) and 2 more: "
        "only outputs are counted, so the true peak may be higher"
    )


def test_a_cleared_profiler_forgets_them():
    def work():
        return mystery(torch.zeros(256, device="cuda"))

    with simulate("24GiB"), LineProfiler(work) as profiler:
        work()
    profiler.clear()
    assert not any("not modelled" in note for note in texts(profiler.display().report.notes))


# As an error


@computed_or_dry
def test_strict_makes_the_first_of_them_an_error(compute):
    with simulate("24GiB", compute=compute, strict=True) as machine:
        x = torch.zeros(8, 8, device="cuda")
        guess(exact(x).relu())
        with pytest.raises(UnmodelledOpError, match=r"^gaps\.mystery\.default has no memory model"):
            mystery(x)
        assert machine.unmodelled == {}
        mystery(x.cpu())


def test_a_decorated_function_is_as_strict():
    @simulate("24GiB", strict=True)
    def work():
        mystery(torch.zeros(8, 8, device="cuda"))

    for _ in range(2):
        with pytest.raises(UnmodelledOpError):
            work()


def test_products_with_compressed_sparse_matrices_are_named() -> None:
    """Entries of the table read strides, which sparse tensors do not have."""
    dense = torch.randn(3, 4)
    expected = torch.eye(3).to_sparse_csr() @ dense
    for compute in (True, False):
        with simulate("24GiB", compute=compute) as machine:
            product = torch.eye(3, device="cuda").to_sparse_csr() @ dense.cuda()
            assert product.device == torch.device("cuda", 0)
            assert product.shape == (3, 4)
            assert machine.unmodelled["aten.mm.default"].nbytes == 48
            if compute:
                assert torch.equal(product.cpu(), expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@computed_or_dry
def test_a_device_among_positional_arguments_counts(compute: bool) -> None:
    with simulate("24GiB", compute=compute):
        nested = torch.nested.nested_tensor(
            [torch.ones(128, 4), torch.ones(256, 4)], device="cuda", layout=torch.strided
        )
        assert torch.cuda.memory_allocated() == (128 + 256) * 4 * 4
        assert nested.to_padded_tensor(0.0).shape == (2, 256, 4)
