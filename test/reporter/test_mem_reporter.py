"""The memory reporter: the samples of its documentation, and tensors of every kind."""

from __future__ import annotations

import contextlib
import gc
import io
import string
import sys
import textwrap
import time
import warnings
import weakref

import pytest
import torch
import torch._dynamo  # optimizers import it, and it wraps torch.manual_seed
from support.python_process import run_python
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from pytorch_memlab.errors import UsageError
from pytorch_memlab.mem_reporter import LEN, MemReporter
from pytorch_memlab.simulation import simulate
from pytorch_memlab.utils import readable_size

pytestmark = pytest.mark.usefixtures("short_search")

CUDA = torch.device("cuda:0")
CPU = torch.device("cpu")
META = torch.device("meta")

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


@pytest.fixture
def gpu(monkeypatch):
    # The samples are older than cuBLAS' workspaces in the allocator.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    gc.collect()
    gc.disable()  # a collection may turn the order of tensors round that one list holds
    try:
        with simulate("24GiB"):
            yield CUDA
    finally:
        gc.enable()


def report_of(reporter: MemReporter, device: object = CUDA, verbose: bool = False) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        reporter.report(verbose=verbose, device=device)
    return out.getvalue()


def stats_of(reporter: MemReporter) -> dict[torch.device, list[tuple]]:
    reporter.collect_tensor()
    reporter.get_stats()
    return reporter.device_tensor_stat


def names_of(reporter: MemReporter, device: torch.device = CUDA) -> list[str]:
    return [name for name, *_ in stats_of(reporter).get(device, [])]


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


# Tensors of every kind


def sizes_on(device: torch.device, make) -> dict[str, tuple[tuple, int]]:
    """The rows that one new tensor adds to a report: name -> size and bytes."""
    reporter = MemReporter()
    before = set(names_of(reporter, device))
    tensor = make()
    found = stats_of(reporter).get(device, [])
    del tensor
    return {
        name.lstrip(string.ascii_letters).lstrip(string.digits): (size, memory)
        for name, size, _, memory in found
        if name not in before
    }


def eye(layout: str) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if layout == "coo":
            return torch.eye(8).to_sparse()
        block = ((2, 2),) if layout.startswith("bs") else ()
        return getattr(torch.eye(8), f"to_sparse_{layout}")(*block)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("coo", {".indices": (2, 8), ".values": (8,)}),
        ("csr", {".crow_indices": (9,), ".col_indices": (8,), ".values": (8,)}),
        ("csc", {".ccol_indices": (9,), ".row_indices": (8,), ".values": (8,)}),
        ("bsr", {".crow_indices": (5,), ".col_indices": (4,), ".values": (4, 2, 2)}),
        ("bsc", {".ccol_indices": (5,), ".row_indices": (4,), ".values": (4, 2, 2)}),
    ],
)
def test_sparse_tensors_show_their_parts(layout, expected):
    assert sizes_on(CPU, lambda: eye(layout)) == {
        name: (size, 512) for name, size in expected.items()
    }


def test_sparse_gradient(gpu):
    embedding = torch.nn.Embedding(1024, 16, sparse=True).cuda()
    embedding(torch.arange(128, device="cuda")).sum().backward()

    assert names_of(MemReporter(embedding)) == [
        "weight",
        "weight.grad.indices",
        "weight.grad.values",
    ]


def quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(40, 40), 0.1, 0, torch.qint8)


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(20, 30), torch.ones(40, 30)])


def quantized_per_channel() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scales, zeros = torch.ones(40), torch.zeros(40, dtype=torch.int64)
        return torch.quantize_per_channel(torch.ones(40, 50), scales, zeros, 0, torch.qint8)


def quantized_without_a_scheme() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.empty(3000, dtype=torch.quint4x2)


def emptied() -> torch.Tensor:
    tensor = torch.ones(1000)
    tensor.untyped_storage().resize_(0)
    return tensor


class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *args, **kwargs):
        raise RuntimeError("not to be looked at")


@pytest.mark.parametrize(
    ("make", "size", "memory"),
    [
        (quantized, "(40, 40)", 2048),
        (quantized_without_a_scheme, "(3000,)", 1536),
        (nested, "(2, *, *)", 7680),
        (emptied, "(1000,)", 0),
        (lambda: torch.ones(300).as_subclass(Refusing), "(300,)", 1536),
        (lambda: torch.ones(64, 64).to_mkldnn(), "(64, 64)", 16384),
        (lambda: torch.ones(300, dtype=torch.complex128), "(300,)", 5120),
        (lambda: torch.ones(300, dtype=torch.float8_e4m3fn), "(300,)", 512),
        (lambda: torch.tensor(1.0), "(1,)", 512),
        (lambda: torch.ones(300, dtype=torch.complex64).conj(), "(300,)", 2560),
    ],
)
def test_odd_tensors(make, size, memory):
    found = list(sizes_on(CPU, make).values())

    assert [(str(shape), used) for shape, used in found] == [(size, memory)]


def test_scales_of_channels_have_rows():
    found = sizes_on(CPU, quantized_per_channel)

    assert {name: found[name] for name in ("", ".scales", ".zero_points")} == {
        "": ((40, 50), 2048),
        ".scales": ((40,), 512),
        ".zero_points": ((40,), 512),
    }


def sub_byte_types() -> list[torch.dtype]:
    names = ("uint1", "uint4", "int4", "float4_e2m1fn_x2")  # not all of them in torch 2.4
    return [getattr(torch, name) for name in names if hasattr(torch, name)]


@pytest.mark.parametrize("dtype", sub_byte_types(), ids=str)
def test_types_of_less_than_a_byte(dtype):
    packed = torch.ones(700, dtype=torch.uint8)

    assert list(sizes_on(CPU, lambda: packed.clone().view(dtype)).values()) == [((700,), 1024)]


def test_distributed_tensors():
    from torch.distributed import HashStore, destroy_process_group, init_process_group

    tensor = pytest.importorskip("torch.distributed.tensor")  # a public module since torch 2.5

    def make():
        whole = torch.ones(300, 4)
        made = tensor.distribute_tensor(whole, mesh, [tensor.Shard(0)])
        alive = weakref.ref(whole)
        del whole
        while alive() is not None:  # a thread of the group lets go of what it sent
            time.sleep(0.001)
        return made

    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        mesh = tensor.DeviceMesh("cpu", [0])
        made = sizes_on(CPU, make)
    finally:
        destroy_process_group()

    assert made == {".local_tensor": ((300, 4), 5120)}


def test_inside_functionalize_and_jvp():
    sizes: list[str] = []

    def look(tensor: torch.Tensor) -> torch.Tensor:
        sizes.extend(str(size) for _, size, *_ in stats_of(MemReporter())[CPU])
        return tensor * 2

    torch.func.functionalize(look)(torch.ones(19, 3))
    torch.func.jvp(look, (torch.ones(23, 3),), (torch.ones(23, 3),))

    assert "(19, 3)" in sizes
    assert "(23, 3)" in sizes


def test_meta_and_fake_tensors_are_listed_apart_and_hold_nothing():
    with FakeTensorMode():
        fake = torch.ones(77)
    symbolic = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.ones(19, 4))
    meta = torch.ones(1000, device="meta")
    reporter = MemReporter()
    rows = {str(size): memory for _, size, _, memory in stats_of(reporter)[torch.device("meta")]}
    text = report_of(reporter, "meta")

    assert rows["(77,)"] == rows["(1000,)"] == 0
    assert rows[f"({symbolic.size(0)}, {symbolic.size(1)})"] == 0
    assert "Storage on meta\n" in text
    assert "allocated" not in text
    del fake, meta


def test_lazy_parameters_and_empty_tensors_have_no_row(gpu):
    module = torch.nn.LazyLinear(4, device="cuda")
    empty = torch.zeros(0, 3, device="cuda")

    assert names_of(MemReporter(module)) == []
    del empty


def test_wrapper_subclasses_show_their_inner_tensors():
    def jagged() -> torch.Tensor:
        return torch.nested.nested_tensor(
            [torch.ones(20, 30), torch.ones(40, 30)], layout=torch.jagged
        )

    assert sizes_on(CPU, jagged) == {".values": ((60, 30), 7680), ".offsets": ((3,), 512)}


def test_inside_vmap_and_grad():
    sizes: list[str] = []

    def look(tensor: torch.Tensor) -> torch.Tensor:
        sizes.extend(str(size) for _, size, *_ in stats_of(MemReporter())[CPU])
        return tensor.sum()

    torch.vmap(look)(torch.ones(11, 13))
    torch.func.grad(look)(torch.ones(17))

    assert "(11, 13)" in sizes
    assert "(17,)" in sizes


def test_a_lazy_clone_is_not_copied_by_looking_at_it():
    clone = torch._lazy_clone(torch.ones(1000))
    stats_of(MemReporter())

    assert torch._C._is_cow_tensor(clone)


def test_odd_objects_are_no_tensors_and_do_no_harm(gpu):
    class Hostile:
        @property
        def __class__(self):
            raise RuntimeError("not to be asked")

    class Pretender:
        __class__ = torch.Tensor

    class Unhashable(type):
        def __hash__(cls):
            raise RuntimeError("not to be hashed")

        def __eq__(cls, other):
            raise RuntimeError("not to be compared")

    class OfUnhashable(metaclass=Unhashable):
        def __init__(self):
            self.own = []

    class Referent:
        pass

    referent = Referent()
    odd = [Hostile(), Pretender(), weakref.proxy(referent), OfUnhashable()]
    del referent

    assert names_of(MemReporter()) == []
    assert MemReporter().snapshot().on(CUDA).rows == ()
    assert len(odd) == 4


def test_a_tensor_that_refuses_everything_does_not_end_the_report(gpu, monkeypatch):
    class Odd(torch.Tensor):
        pass

    odd = torch.ones(4, device="cuda").as_subclass(Odd)
    plain = torch.ones(4, device="cuda")

    def refuse(self):
        raise TypeError("no")

    monkeypatch.setattr(Odd, "numel", refuse)

    found = stats_of(MemReporter())[CUDA]

    assert [(name.rstrip("0123456789"), str(size), used) for name, size, _, used in found] == [
        ("Odd", "(?,)", 0),
        ("Tensor", "(4,)", 512),
        ("Tensor", "(4,)", 512),  # what `odd` is a view of
    ]
    del odd, plain


def test_a_tensor_without_any_attribute_does_not_end_the_report(gpu):
    class Hostile(torch.Tensor):
        def __getattribute__(self, name):
            raise ValueError(name)

        def __eq__(self, other):
            raise ValueError

        __hash__ = None

    hostile = torch.ones(4, device="cuda").as_subclass(Hostile)
    reporter = MemReporter()

    for _ in range(2):
        assert [row[1:] for row in stats_of(reporter)[CUDA]] == [((4,), 4, 512)]  # what it views
        on_meta = [name.rstrip("0123456789") for name, *_ in reporter.device_tensor_stat[META]]
        assert "Hostile" in on_meta
    assert "hostile" in [row.name for row in reporter.snapshot().rows]
    del hostile


@pytest.mark.parametrize("reporter_knows_it", [True, False])
def test_a_model_that_cannot_tell_its_parameters(gpu, reporter_knows_it):
    class Unfinished(torch.nn.Module):
        def __init__(self):
            self.rows = 3  # forgot super().__init__()

    class Refuses(torch.nn.Module):
        def named_parameters(self, *args, **options):
            raise RuntimeError("no")

        named_modules = named_parameters

    models = [Unfinished(), Refuses()]
    kept = torch.ones(4, device="cuda")
    for model in models:
        reporter = MemReporter(model if reporter_knows_it else None)
        assert stats_of(reporter)[CUDA] == [("Tensor0", (4,), 4, 512)]
        assert [row.name for row in reporter.snapshot().on(CUDA).rows] == ["kept"]
    del kept


def test_inside_a_mode_that_refuses_calls(gpu):
    class Refuses(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if "_is_view" in str(func):
                raise RuntimeError("no")
            return func(*args, **(kwargs or {}))

    tensor = torch.ones(4, device="cuda")
    view = tensor[1:]
    with Refuses():
        rows = MemReporter().snapshot().on(CUDA).rows

    assert [(row.name, row.is_view) for row in rows] == [("tensor", False), ("view", True)]
    del view


# The calls that programs make


def test_subclasses_print_their_own_way(gpu, capsys):
    class Sorted(MemReporter):
        def print_stats(self, verbose=False, target_device=None):
            for device, rows in self.device_tensor_stat.items():
                if device == target_device:
                    for name, _, _, memory in sorted(rows, key=lambda row: -row[3]):
                        print(name.split("(")[0], readable_size(memory), "-" * LEN, verbose)

    tensors = [torch.ones(1024, device="cuda"), torch.ones(2048, device="cuda")]
    Sorted().report(True, torch.device("cuda:0"))

    separator = "-" * 79
    assert capsys.readouterr().out == (
        f"Tensor1 8.00K {separator} True\nTensor0 4.00K {separator} True\n"
    )
    del tensors


def test_output_goes_to_the_stdout_of_the_moment(gpu, monkeypatch):
    reporter = MemReporter()
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    reporter.report()

    assert out.getvalue().startswith("Element type")


def test_all_devices_in_order_and_one_alone():
    with simulate("24GiB", count=2):
        tensors = [torch.ones(size, device=f"cuda:{index}") for index, size in ((1, 9), (0, 8))]
        host = torch.ones(7)
        reporter = MemReporter()
        text = report_of(reporter, None)
        second = report_of(reporter, torch.device("cuda:1"))
        both = report_of(reporter, "cuda")
    headings = [line for line in text.splitlines() if line.startswith("Storage on")]

    assert headings[:3] == ["Storage on cuda:0", "Storage on cuda:1", "Storage on cpu"]
    assert "Storage on cuda:0" not in second
    assert "(9,)" in second
    assert both.count("Storage on") == 2
    del tensors, host


def test_a_device_without_tensors_says_so(gpu):
    hidden = torch.ones(1024, device="cuda").untyped_storage()

    assert report_of(MemReporter(), "cuda:0") == textwrap.dedent("""\
        Element type                                            Size  Used MEM
        -------------------------------------------------------------------------------
        Storage on cuda:0
        -------------------------------------------------------------------------------
        Total Tensors: 0        Used Memory: 0.00B
        The allocated memory on cuda:0: 4.00K
        Memory differs due to the matrix alignment
        -------------------------------------------------------------------------------
        """)
    del hidden


def test_devices_that_do_not_exist(gpu, tmp_path):
    tensor = torch.ones(4, device="cuda")
    reporter = MemReporter()
    written = tmp_path / "report.txt"
    written.write_text("what was there")

    for device in ("cuda:7", 7, torch.device("cuda", 7)):
        for details in (False, True):
            with pytest.raises(UsageError, match=r"^no device 'cuda:7' here: there is cuda:0"):
                reporter.report(device=device, details=details, file=written)
    for device in ("gpu", -1, True, 1.5, ["cuda"], ""):
        with pytest.raises(
            UsageError, match=r"give an index, or a name such as 'cuda:0' or 'cpu'$"
        ):
            reporter.report(device=device)
    with pytest.raises(UsageError, match=r"^no device 'cuda:1' here"):
        reporter.snapshot().on(1)
    assert written.read_text() == "what was there"
    assert "Storage on meta" in report_of(reporter, "meta")
    del tensor


def test_print_stats_takes_what_report_takes(gpu, capsys):
    tensor = torch.ones(4, device="cuda")
    reporter = MemReporter()
    stats_of(reporter)
    reporter.print_stats(target_device="cuda")
    text = capsys.readouterr().out
    reporter.print_stats(target_device=0)

    assert "Tensor0" in text
    assert capsys.readouterr().out == text
    del tensor


def test_a_long_name_keeps_its_distance_from_the_size(gpu):
    model = torch.nn.Module()
    model.register_parameter("x" * 70, torch.nn.Parameter(torch.ones(2, 3, device="cuda")))

    assert f"{'x' * 70} (2, 3)   512.00B\n" in report_of(MemReporter(model))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MemReporter("model"), "model must be a torch Module, not a str"),
        (lambda: MemReporter().add_optimizer(3), "optimizer must be a torch Optimizer, not a int"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(UsageError, match=f"^{message}$"):
        call()
