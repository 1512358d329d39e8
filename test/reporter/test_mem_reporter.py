"""The memory reporter: the samples of its documentation, and the names of tensors."""

from __future__ import annotations

import gc
import textwrap
import warnings
import weakref

import pytest
import torch
from support.python_process import run_python
from support.saved_tensors import knows_saved_tensors
from support.small_reports import (
    CPU,
    CUDA,
    names_of,
    report_of,
    stats_of,
)

from pytorch_memlab.mem_reporter import MemReporter

BEFORE_BACKWARD = """\
Element type                                            Size  Used MEM
-------------------------------------------------------------------------------
Storage on cuda:0
weight                                          (1024, 1024)     4.00M
bias                                                 (1024,)     4.00K
Tensor0                                          (512, 1024)     2.00M
Tensor1                                                 (1,)   512.00B
-------------------------------------------------------------------------------
Total Tensors: 1573889  Used Memory: 6.00M
The allocated memory on cuda:0: 6.00M
-------------------------------------------------------------------------------
"""

AFTER_BACKWARD = """\
Element type                                            Size  Used MEM
-------------------------------------------------------------------------------
Storage on cuda:0
weight                                          (1024, 1024)     4.00M
weight.grad                                     (1024, 1024)     4.00M
bias                                                 (1024,)     4.00K
bias.grad                                            (1024,)     4.00K
Tensor0                                          (512, 1024)     2.00M
Tensor1                                                 (1,)   512.00B
-------------------------------------------------------------------------------
Total Tensors: 2623489  Used Memory: 10.01M
The allocated memory on cuda:0: 10.01M
-------------------------------------------------------------------------------
"""


def test_sample_without_model(gpu):
    linear = torch.nn.Linear(1024, 1024).cuda()

    assert report_of(MemReporter()) == textwrap.dedent("""\
        Element type                                            Size  Used MEM
        -------------------------------------------------------------------------------
        Storage on cuda:0
        Parameter0                                      (1024, 1024)     4.00M
        Parameter1                                           (1024,)     4.00K
        -------------------------------------------------------------------------------
        Total Tensors: 1049600  Used Memory: 4.00M
        The allocated memory on cuda:0: 4.00M
        -------------------------------------------------------------------------------
        """)
    del linear


def test_sample_before_and_after_backward(gpu):
    linear = torch.nn.Linear(1024, 1024).cuda()
    inp = torch.Tensor(512, 1024).cuda()
    reporter = MemReporter(linear)
    out = linear(inp).mean()

    assert report_of(reporter) == BEFORE_BACKWARD
    out.backward()
    assert report_of(reporter) == AFTER_BACKWARD


def test_sample_on_the_cpu_is_all_that_a_fresh_process_prints():
    program = """
        import torch
        from pytorch_memlab.mem_reporter import MemReporter
        linear = torch.nn.Linear(1024, 1024)
        inp = torch.Tensor(512, 1024)
        reporter = MemReporter(linear)
        out = linear(inp).mean()
        reporter.report()
        out.backward()
        reporter.report()
        """
    done = run_python(["-c", textwrap.dedent(program)])

    expected = (BEFORE_BACKWARD + AFTER_BACKWARD).splitlines(keepends=True)
    lines = [line.replace("cuda:0", "cpu") for line in expected if "allocated" not in line]
    assert done.stdout == "".join(lines)


def test_sample_of_tied_weights(gpu):
    linear = torch.nn.Linear(1024, 1024).cuda()
    linear2 = torch.nn.Linear(1024, 1024).cuda()
    linear2.weight = linear.weight
    container = torch.nn.Sequential(linear, linear2)
    inp = torch.Tensor(512, 1024).cuda()
    out = container(inp).mean()
    out.backward()

    assert report_of(MemReporter(container), verbose=True) == textwrap.dedent("""\
        Element type                                            Size  Used MEM
        -------------------------------------------------------------------------------
        Storage on cuda:0
        0.weight                                        (1024, 1024)     4.00M
        0.weight.grad                                   (1024, 1024)     4.00M
        0.bias                                               (1024,)     4.00K
        0.bias.grad                                          (1024,)     4.00K
        1.bias                                               (1024,)     4.00K
        1.bias.grad                                          (1024,)     4.00K
        Tensor0                                          (512, 1024)     2.00M
        Tensor1                                                 (1,)   512.00B
        -------------------------------------------------------------------------------
        Total Tensors: 2625537  Used Memory: 10.02M
        The allocated memory on cuda:0: 10.02M
        -------------------------------------------------------------------------------
        """)


LSTM_SHAPES = {
    "weight_ih_l0": (4096, 1024),
    "weight_hh_l0": (4096, 1024),
    "bias_ih_l0": (4096,),
    "bias_hh_l0": (4096,),
}


class FlatLSTM(torch.nn.Module):
    """Parameters of an LSTM in one storage, as cuDNN has them."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [torch.Size(shape).numel() for shape in LSTM_SHAPES.values()]
        values, grads = (torch.zeros(sum(sizes), device="cuda").split(sizes) for _ in range(2))
        for (name, shape), value, grad in zip(LSTM_SHAPES.items(), values, grads, strict=True):
            self.register_parameter(name, torch.nn.Parameter(value.view(shape)))
            getattr(self, name).grad = grad.view(shape).data


def test_sample_of_an_lstm_shows_shared_storages_and_what_the_allocator_has_besides(gpu):
    lstm = FlatLSTM()
    inp = torch.zeros(10, 10, 1024, device="cuda")
    kept = [torch.zeros(shape, device="cuda") for shape in ((10, 10, 1024), *[(1, 10, 1024)] * 2)]
    workspace = torch.zeros(194 * 1024, dtype=torch.uint8, device="cuda").untyped_storage()

    assert report_of(MemReporter(lstm), verbose=True) == textwrap.dedent("""\
        Element type                                            Size  Used MEM
        -------------------------------------------------------------------------------
        Storage on cuda:0
        weight_ih_l0                                    (4096, 1024)    32.03M
        weight_ih_l0.grad                               (4096, 1024)    32.03M
        weight_hh_l0(->weight_ih_l0)                    (4096, 1024)     0.00B
        weight_hh_l0.grad(->weight_ih_l0.grad)          (4096, 1024)     0.00B
        bias_ih_l0(->weight_ih_l0)                           (4096,)     0.00B
        bias_ih_l0.grad(->weight_ih_l0.grad)                 (4096,)     0.00B
        bias_hh_l0(->weight_ih_l0)                           (4096,)     0.00B
        bias_hh_l0.grad(->weight_ih_l0.grad)                 (4096,)     0.00B
        Tensor0                                       (10, 10, 1024)   400.00K
        Tensor1                                       (10, 10, 1024)   400.00K
        Tensor2                                        (1, 10, 1024)    40.00K
        Tensor3                                        (1, 10, 1024)    40.00K
        -------------------------------------------------------------------------------
        Total Tensors: 17018880         Used Memory: 64.92M
        The allocated memory on cuda:0: 65.11M
        Memory differs due to the matrix alignment
        -------------------------------------------------------------------------------
        """)
    assert "weight_hh_l0                                    (4096, 1024)     0.00B\n" in report_of(
        MemReporter(lstm)
    )
    del inp, kept, workspace


@knows_saved_tensors
def test_failed_example_shows_what_autograd_keeps(gpu):
    linear = torch.nn.Linear(1024, 1024).cuda()
    inp = torch.Tensor(512, 1024).cuda()
    reporter = MemReporter(linear)
    out = linear(inp * (inp + 2)).mean()

    expected = textwrap.dedent("""\
        Element type                                            Size  Used MEM
        -------------------------------------------------------------------------------
        Storage on cuda:0
        weight                                          (1024, 1024)     4.00M
        bias                                                 (1024,)     4.00K
        Tensor0                                          (512, 1024)     2.00M
        Tensor1                                                 (1,)   512.00B
        saved by AddmmBackward0                          (512, 1024)     2.00M
        -------------------------------------------------------------------------------
        Total Tensors: 2098177  Used Memory: 8.00M
        The allocated memory on cuda:0: 8.00M
        -------------------------------------------------------------------------------
        """)
    assert report_of(reporter) == expected
    assert report_of(reporter) == expected  # to have looked changes nothing
    out.backward()
    assert report_of(reporter) == AFTER_BACKWARD


@knows_saved_tensors
def test_memory_that_differs_while_a_graph_waits_may_be_buffers(gpu):
    weight = torch.ones(1024, device="cuda", requires_grad=True)
    out = weight.exp().sum()
    hidden = torch.ones(2048, device="cuda").untyped_storage()

    waiting = report_of(MemReporter())
    out.backward()
    done = report_of(MemReporter())

    difference = "Memory differs due to the matrix alignment"
    assert f"{difference} or invisible gradient buffer tensors\n" in waiting
    assert f"{difference}\n" in done
    del hidden


@knows_saved_tensors
def test_a_tensor_that_is_saved_and_held_by_a_variable_has_its_own_row(gpu):
    weight = torch.ones(8, device="cuda", requires_grad=True)
    held = weight * 2
    out = (held * held).sum()

    assert names_of(MemReporter()) == ["Tensor0", "Tensor1", "Tensor2"]
    del held
    assert names_of(MemReporter()) == ["Tensor0", "Tensor1", "saved by MulBackward0"]
    del out
    assert names_of(MemReporter()) == ["Tensor0"]


def test_hooks_of_saved_tensors_do_not_run(gpu):
    unpacked = []
    weight = torch.ones(8, device="cuda", requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), unpacked.append):
        out = weight.exp()
    stats_of(MemReporter())

    assert unpacked == []
    del out


@knows_saved_tensors
def test_custom_functions_save_too(gpu):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor):
            ctx.save_for_backward(tensor * 3)
            return tensor * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    out = Double.apply(torch.ones(8, device="cuda", requires_grad=True))

    assert names_of(MemReporter()) == [
        "Tensor0",
        "saved by DoubleBackward",
        "saved by AccumulateGrad",
    ]
    del out


def test_bytes_are_those_of_the_storage_counted_once(gpu):
    base = torch.zeros(1000, dtype=torch.float64, device="cuda")
    row, half, empty = base[3:5], base.view(torch.float16), torch.zeros(0, device="cuda")

    assert stats_of(MemReporter())[CUDA] == [
        ("Tensor0", (1000,), 1000, 8192),
        ("Tensor1(->Tensor0)", (2,), 2, 0),
        ("Tensor2(->Tensor0)", (4000,), 4000, 0),
    ]
    del row, half, empty


def test_a_view_without_elements_still_holds_its_storage(gpu):
    view = torch.zeros(1000, device="cuda")[:0]

    assert stats_of(MemReporter())[CUDA] == [("Tensor0", (0,), 0, 4096)]
    del view


def test_two_tensors_over_the_same_numpy_array_count_once():
    reporter = MemReporter()
    before = sum(memory for *_, memory in stats_of(reporter).get(CPU, []))
    tensor = torch.zeros(1024)
    other = torch.from_numpy(tensor.numpy())

    assert sum(memory for *_, memory in stats_of(reporter)[CPU]) == before + 4096
    del other


def test_buffers_and_parameters_made_later_have_names(gpu):
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4))
    reporter = MemReporter(model)
    model.append(torch.nn.Linear(2, 2))
    model.cuda()

    assert names_of(reporter) == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
        "0.running_mean",
        "0.running_var",
        "0.num_batches_tracked",
    ]


def trained(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2, device="cuda")).exp().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return optimizer


@pytest.mark.parametrize("added", [True, False])
def test_optimizer_state_has_names(gpu, added):
    model = torch.nn.Linear(2, 1, bias=False).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    reporter = MemReporter(model)
    if added:
        reporter.add_optimizer(optimizer)
    trained(model, optimizer)

    assert names_of(reporter) == [
        "weight",
        "weight.grad",
        "Adam.weight.exp_avg",
        "Adam.weight.exp_avg_sq",
    ]
    assert "Adam.weight.step" in names_of(reporter, CPU)


def test_optimizer_without_model(gpu):
    model = torch.nn.Linear(2, 1, bias=False).cuda()
    optimizer = trained(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    reporter = MemReporter()
    reporter.add_optimizer(optimizer)

    assert names_of(reporter) == ["SGD.Parameter0.momentum_buffer", "Parameter0", "Parameter0.grad"]


def test_optimizer_state_in_lists_has_names(gpu):
    model = torch.nn.Linear(2, 1, bias=False).cuda()
    optimizer = trained(model, torch.optim.LBFGS(model.parameters(), max_iter=4))
    found = names_of(MemReporter(model))

    assert "LBFGS.weight.old_dirs.0" in found
    assert "LBFGS.weight.d" in found
    del optimizer


def test_names_do_not_go_to_tensors_that_follow_at_the_same_address(gpu):
    model = torch.nn.Linear(2, 2).cuda()
    reporter = MemReporter(model)
    stats_of(reporter)
    del model
    others = [torch.nn.Parameter(torch.ones(2, device="cuda")) for _ in range(50)]

    names = set(names_of(reporter))
    assert len(names) == 50
    assert all(name.startswith("Parameter") for name in names)
    del others


def test_numbers_stay_with_their_tensors(gpu):
    reporter = MemReporter()
    first, second = torch.ones(1, device="cuda"), torch.ones(2, device="cuda")
    assert names_of(reporter) == ["Tensor0", "Tensor1"]
    del first
    third = torch.ones(3, device="cuda")
    kept, new = names_of(reporter)

    assert kept == "Tensor1"
    assert new not in ("Tensor0", "Tensor1")
    del second, third


def test_gradients_of_tensors_that_are_no_parameters(gpu):
    leaf = torch.ones(2, device="cuda", requires_grad=True)
    middle = leaf * 2
    middle.retain_grad()
    middle.sum().backward()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert names_of(MemReporter()) == ["Tensor0", "Tensor0.grad", "Tensor1", "Tensor1.grad"]


def test_nothing_is_kept_alive(gpu):
    model = torch.nn.Linear(2, 1).cuda()
    optimizer = trained(model, torch.optim.Adam(model.parameters()))
    reporter = MemReporter(model)
    reporter.add_optimizer(optimizer)
    report_of(reporter)
    reporter.collect_tensor()
    watched = [weakref.ref(model), weakref.ref(optimizer)]
    del model, optimizer
    gc.collect()

    assert [reference() for reference in watched] == [None, None]
    assert torch.cuda.memory_allocated() == 0
    reporter.get_stats()
    assert reporter.device_tensor_stat.get(CUDA) is None


def test_a_report_allocates_nothing_and_makes_no_cycle(gpu):
    model = torch.nn.Linear(2, 1).cuda()
    trained(model, torch.optim.Adam(model.parameters()))
    indices = torch.zeros(1, 1, dtype=torch.int64, device="cuda")
    sparse = torch.sparse_coo_tensor(
        indices, torch.ones(1, device="cuda"), (4,), check_invariants=False
    )
    reporter = MemReporter(model)
    report_of(reporter)
    gc.collect()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    gc.collect()
    report_of(reporter)

    assert gc.collect() == 0
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    del sparse


def test_pre_collect_drops_garbage_first(gpu):
    def make_garbage():
        cycle = [torch.ones(2, device="cuda")]
        cycle.append(cycle)

    make_garbage()
    assert names_of(MemReporter()) == ["Tensor0"]
    assert names_of(MemReporter(pre_collect=True)) == []
