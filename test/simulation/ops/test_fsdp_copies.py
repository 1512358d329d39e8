"""Temporaries of kernels that copy many tensors of sharded models at once."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import aten, events, randn, temporaries

from pytorch_memlab.simulation import simulate
from pytorch_memlab.simulation.machine.torch_release import RELEASE

pytestmark = pytest.mark.usefixtures("no_values_in_dry_runs")


BLOCK = 128 * 16
"""Bytes that a block of threads copies at once."""


def split(source, *results, dim=1):
    sizes = [one.shape[dim] for one in results]
    aten.split_with_sizes_copy.out(source, sizes, dim, out=list(results))


def numbers(splits, blocks):
    """Bytes of where splits come from and go to, of how long they are, and of their blocks."""
    return temporaries((4 * splits + 1 + blocks) * 8)


@computed_or_dry
@pytest.mark.parametrize(("columns", "blocks"), [(512, 1), (513, 2)])
def test_a_split_counts_blocks_of_its_splits(columns, blocks, compute):
    make = [
        lambda: randn(2, columns + 3),
        lambda: randn(2, columns),
        lambda: randn(2, 3),
    ]
    assert columns * 4 <= BLOCK * blocks
    assert events(split, *make, compute=compute) == numbers(2, blocks + 1)


@computed_or_dry
@pytest.mark.parametrize(
    ("gpu", "resident"), [("a100", 108 * 2048 // 128), ("t4", 40 * 1024 // 128)]
)
def test_blocks_take_turns_when_there_are_more_than_the_gpu_holds_twice(gpu, resident, compute):
    def blocks(count):
        columns = count * BLOCK // 4
        make = [lambda: randn(1, columns), lambda: randn(1, columns)]
        [taken, _] = events(split, *make, gpu=gpu, compute=compute)
        return taken // 8 - 5

    most = 2 * resident
    assert blocks(most) == most
    assert blocks(most + 1) == -(-(most + 1) // 2)


@computed_or_dry
def test_what_lies_apart_or_is_converted_is_copied_one_by_one(compute):
    apart = [lambda: randn(2, 12)[:, ::2], lambda: randn(2, 4), lambda: randn(2, 2)]
    assert events(split, *apart, compute=compute) == []
    holes = [lambda: randn(2, 6), lambda: randn(2, 8)[:, ::2], lambda: randn(2, 2)]
    assert events(split, *holes, compute=compute) == []


JOINS_CONTIGUOUS_ALONE = RELEASE < (2, 7)
"""The kernels for CPUs and for shapes in torch 2.6 refuse what CUDA's makes a copy of."""


def joined(count, blocks):
    return (6 * count + 2 + blocks) * 8


@computed_or_dry
def test_chunks_are_joined_by_one_kernel(compute):
    def join(*tensors):
        return torch._chunk_cat(tensors, 0, 2)

    # Chunks of 2 * 400 and 3 * 100 floats, the last one padded.
    make = [lambda: randn(4, 400), lambda: randn(5, 100)]
    result = 2 * (800 + 300) * 4
    assert events(join, *make, compute=compute) == [result, *temporaries(joined(2, 2 + 1))]
    if JOINS_CONTIGUOUS_ALONE:
        return
    apart = [lambda: randn(4, 801)[:, :-1:2], lambda: randn(5, 200)[:, ::2]]
    copies = [4 * 400 * 4, 6 * 100 * 4]
    found = events(join, *apart, compute=compute)
    assert found == [*copies, result, *(-nbytes for nbytes in reversed(copies))]


@computed_or_dry
def test_gradients_are_widened_as_they_are_joined(compute):
    def join(first, second, result):
        torch._chunk_cat([first, second], 0, 2, out=result)

    def halves(*shape):
        return lambda: randn(*shape, dtype=torch.bfloat16)

    make = [halves(4, 400), halves(5, 100), lambda: randn(2, 1100)]
    assert events(join, *make, compute=compute) == temporaries(joined(2, 3))
    # No kernel narrows them: only what must be padded is copied.
    narrow = [lambda: randn(4, 400), lambda: randn(5, 100), halves(2, 1100)]
    assert events(join, *narrow, compute=compute) == temporaries(6 * 100 * 4)
    if JOINS_CONTIGUOUS_ALONE:
        return
    turned = [lambda: randn(400, 4).t(), lambda: randn(4, 100), halves(2, 1000)]
    assert events(join, *turned, compute=compute) == temporaries(4 * 400 * 4)


@computed_or_dry
def test_sharded_modules_name_no_op(compute):
    def gather(*shards):
        output = torch.zeros(2 * 6, device="cuda")
        torch.ops.fsdp.all_gather_copy_in(list(shards), output, [4, 2], 6, 1)
        whole = [torch.zeros(2, 4, device="cuda"), torch.zeros(2, 2, device="cuda")]
        torch.ops.fsdp.split_with_sizes_copy(output.view(2, 6), [4, 2], dim=1, out=whole)
        joined = torch.zeros(2, 6, device="cuda")
        torch.ops.fsdp.chunk_cat(whole, dim=0, num_chunks=2, out=joined)

    if not hasattr(torch.ops.fsdp, "chunk_cat"):
        pytest.skip("this PyTorch has no such ops")
    with simulate("a100", compute=compute) as machine:
        gather(randn(4), randn(2))
        assert machine.unmodelled == {}
        estimated = machine.approximations[0].estimated
        assert estimated["fsdp.split_with_sizes_copy.default"].nbytes == (4 * 2 + 1 + 2) * 8
        assert estimated["fsdp.chunk_cat.default"].nbytes == joined(2, 2)


@pytest.mark.skipif(RELEASE < (2, 15), reason="torch 2.15 and later join gradients of two dtypes")
@computed_or_dry
def test_gradients_of_two_dtypes_are_joined_by_one_kernel(compute):
    def join(first, second, result):
        torch.ops.fsdp.chunk_cat_mixed_dtype([first, second], 0, 2, out=result)

    def of(dtype, *shape):
        return lambda: randn(*shape, dtype=dtype)

    single, half = torch.float32, torch.bfloat16
    same = [of(half, 4, 400), of(half, 5, 100), of(single, 2, 1100)]
    assert events(join, *same, compute=compute) == temporaries(joined(2, 3))
    mixed = [of(half, 4, 400), of(single, 5, 100), of(single, 2, 1100)]
    assert events(join, *mixed, compute=compute) == temporaries((6 * 2 + 3) * 8)
    cast = [of(torch.float16, 4, 400), of(single, 5, 100), of(single, 2, 1100)]
    copy, packed = 4 * 400 * 4, joined(2, 3)
    assert events(join, *cast, compute=compute) == [copy, packed, -packed, -copy]
