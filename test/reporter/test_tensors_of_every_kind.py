"""The memory reporter with tensors of every kind, and with odd ones."""

from __future__ import annotations

import string
import warnings
import weakref

import pytest
import torch
from support.small_reports import CPU, CUDA, META, names_of, report_of, stats_of
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from pytorch_memlab.mem_reporter import MemReporter


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
        (lambda: torch.empty(300, dtype=torch.float8_e4m3fn), "(300,)", 512),
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
    names = ("uint1", "uint4", "int4", "float4_e2m1fn_x2")  # not all of them in torch 2.6
    return [getattr(torch, name) for name in names if hasattr(torch, name)]


@pytest.mark.parametrize("dtype", sub_byte_types(), ids=str)
def test_types_of_less_than_a_byte(dtype):
    packed = torch.ones(700, dtype=torch.uint8)

    assert list(sizes_on(CPU, lambda: packed.clone().view(dtype)).values()) == [((700,), 1024)]


def test_distributed_tensors():
    from torch.distributed import HashStore, destroy_process_group, init_process_group
    from torch.distributed.device_mesh import init_device_mesh

    tensor = pytest.importorskip("torch.distributed.tensor")

    def make():
        # Not by distribute_tensor(): a thread of the group holds for a while what it sent.
        return tensor.DTensor.from_local(torch.ones(300, 4), mesh, [tensor.Shard(0)])

    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
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
