"""The peak of a history: its blocks add up to what the allocator counted, on every recording."""

from __future__ import annotations

import pytest
import torch
from recorded_programs.histories import RECORDINGS, history_of_recording
from recorded_programs.streams import load

from pytorch_memlab._common.frames.user_code import is_of_user
from pytorch_memlab.history.holders import peak_holders
from pytorch_memlab.history.peak import find_peak
from pytorch_memlab.history.snapshot import history_of
from pytorch_memlab.simulation import replay, simulate

MIB = 2**20


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_blocks_at_the_peak_of_a_recording_add_up_to_the_counters(name):
    trace = load(name)
    holders = peak_holders(history_of_recording(trace))
    counters = replay(trace).stats
    assert holders.peak.active == counters["active_bytes"]["all"]["peak"]
    for rows in (holders.by_line(), holders.by_function()):
        assert sum(row.size for row in rows) == holders.peak.active
    assert sum(size for _, size in holders.by_stack()) == holders.peak.active


def test_the_recorded_lines_are_named():
    rows = peak_holders(history_of_recording(load("attention_from_start"))).by_line()[:7]
    attention, main = "custom_scaled_dot_product_attention", "main"
    assert [(row.file, row.line, row.function, row.size, row.blocks) for row in rows] == [
        ("", 0, "no Python frame", 2694971392, 7),
        ("trace_peak_memory.py", 7, "custom_softmax", 512 * MIB, 1),
        ("trace_peak_memory.py", 12, attention, 8519680, 1),
        ("trace_peak_memory.py", 20, attention, 2 * MIB, 1),
        ("trace_peak_memory.py", 35, main, 2 * MIB, 1),
        ("trace_peak_memory.py", 36, main, 2 * MIB, 1),
        ("trace_peak_memory.py", 37, main, 2 * MIB, 1),
    ]


def keep():
    return torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")


def recorded(program):
    """The history of a program on a simulated GPU, and its peak as the allocator counted it."""
    with simulate("24GiB"):
        torch.cuda.memory._record_memory_history()
        program()
        snapshot = torch.cuda.memory._snapshot()
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.memory._record_memory_history(enabled=None)
    return history_of(snapshot), peak


def test_a_simulated_programs_lines_add_up_to_its_peak():
    def program():
        kept = [keep() for _ in range(3)]
        del kept[1]
        model = torch.nn.Linear(512, 512).cuda()
        model(torch.ones(4, 512, device="cuda")).sum().backward()

    history, peak = recorded(program)
    holders = peak_holders(history)
    assert holders.peak.active == peak == sum(row.size for row in holders.by_line())
    functions = {row.function: row for row in holders.by_function()}
    assert (functions["keep"].size, functions["keep"].blocks) == (6 * MIB, 2)
    frames = holders.to_dataframe()
    assert frames["size"].sum() == peak
    collapsed = holders.collapsed_stacks().splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in collapsed) == peak
    assert any("program (test_peak.py:" in line and ";keep (" in line for line in collapsed)


def test_blocks_from_before_the_recording_have_a_name():
    def program():
        torch.cuda.memory._record_memory_history(enabled=None)
        kept.append(keep())
        torch.cuda.memory._record_memory_history()
        kept.append(keep())

    kept = []
    history, peak = recorded(program)
    rows = peak_holders(history).by_line()
    line = keep.__code__.co_firstlineno + 1
    assert {(row.file, row.line, row.function, row.size) for row in rows} == {
        ("", 0, "allocated before the recording", 3 * MIB),
        (__file__, line, "keep", 3 * MIB),
    }
    assert find_peak(history).active == peak


@pytest.mark.parametrize(
    ("filename", "is_users"),
    [
        ("train.py", True),
        ("/home/me/library/train.py", True),
        ("<ipython-input-3-abc>", True),
        ("<stdin>", True),
        ("<stdin>-5", True),
        ("<python-input-0>", True),
        ("<string>", False),
        ("/opt/conda/lib/python3.10/site-packages/torch/nn/modules/linear.py", False),
        ("/usr/lib/python3.9/runpy.py", False),
        ("C:\\env\\Lib\\site-packages\\torch\\functional.py", False),
        ("<frozen runpy>", False),
        ("Memory.cpp", False),
        (torch.__file__, False),
    ],
)
def test_which_files_are_the_users(filename, is_users):
    assert is_of_user(filename) is is_users


def product(x):
    return x.mul(x).exp()


def test_the_backward_pass_counts_at_the_line_of_the_forward_op():
    def program():
        x = torch.ones(MIB, device="cuda", requires_grad=True)
        product(x).sum().backward()

    history, peak = recorded(program)
    rows = {row.function: row for row in peak_holders(history).by_function()}
    assert sum(row.size for row in rows.values()) == peak
    # At the peak x, the sum and the gradient of the sum; the gradient of the result of exp, and
    # that of each factor of x * x. What the forward pass of product saved is freed by then.
    assert (rows["program"].size, rows["program"].backward) == (4 * MIB + 1024, 0)
    assert (rows["product"].size, rows["product"].backward) == (12 * MIB, 12 * MIB)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def test_a_backward_of_the_programs_own_counts_at_its_own_line():
    def program():
        x = torch.ones(MIB, device="cuda", requires_grad=True)
        y = Doubled.apply(x)
        y.sum().backward()

    history, _ = recorded(program)
    rows = [row for row in peak_holders(history).by_line() if row.function == "backward"]
    assert [(row.size, row.backward) for row in rows] == [(4 * MIB, 0)]
