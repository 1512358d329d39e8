"""Ops on lists of tensors: each result is where its own tensor is, whatever comes first."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import events, randn, temporaries

from pytorch_memlab import simulate
from pytorch_memlab.simulation.machine.torch_release import RELEASE
from pytorch_memlab.simulation.ops import pointwise as pointwise

OPTIMIZERS = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "ASGD", "Rprop", "Adadelta", "RMSprop")


def _calls(tensors: list[torch.Tensor]) -> dict[str, Any]:
    """One call of each op whose schema takes lists and returns one, with a scalar where it may."""
    calls: dict[str, Any] = {}
    for full_name in sorted(torch._C._dispatch_get_all_op_names()):
        name, _, overload = full_name.partition(".")
        if not name.startswith("aten::_foreach_") or name.endswith(("_", "_foreach_mm")):
            continue
        op = getattr(getattr(torch.ops.aten, name.removeprefix("aten::")), overload or "default")
        schema = op._schema
        if [str(result.type) for result in schema.returns] != ["List[Tensor]"]:
            continue
        values = {
            "List[Tensor]": tensors,
            "Tensor": torch.ones((), device="cpu"),
            "number": 2.0,
            "List[number]": [2.0] * len(tensors),
        }
        given = [argument for argument in schema.arguments if not argument.has_default_value()]
        calls[str(op)] = (op, [values[str(argument.type)] for argument in given])
    return calls


@computed_or_dry
def test_every_result_is_where_its_tensor_is(compute: bool) -> None:
    with simulate("24GiB", count=2, compute=compute):
        tensors = [torch.rand(3, device="cuda:1"), torch.rand(2, device="cuda:0")]
        checked = {}
        for name, (op, args) in _calls(tensors).items():
            if name.endswith(".Tensor"):
                continue  # the one tensor cannot be on both GPUs
            checked[name] = [str(result.device) for result in op(*args)]
    assert {name for name, where in checked.items() if where != ["cuda:1", "cuda:0"]} == set()
    assert "aten._foreach_pow.ScalarAndTensor" in checked
    assert len(checked) > 60


@computed_or_dry
def test_lists_of_several_devices_run_tensor_by_tensor(compute: bool) -> None:
    with simulate("24GiB", compute=compute):
        gpu, cpu = torch.ones(3, device="cuda"), torch.ones(3)
        for mixed in ([gpu, cpu], [cpu, gpu]):
            where = [one.device for one in mixed]
            before = torch.cuda.memory_allocated()
            sums = torch._foreach_add(mixed, mixed)
            assert [one.device for one in sums] == where
            assert torch.cuda.memory_allocated() == before + 512
            torch._foreach_mul_(mixed, 2.0)
            del sums
        # A number on the CPU is taken beside a tensor of the GPU, as by each op alone.
        (scaled,) = torch._foreach_mul([gpu], [torch.ones(())])
        assert scaled.is_cuda
        torch._foreach_copy_([gpu], [cpu])
        with pytest.raises(RuntimeError, match=r"found at least two devices, cuda:0 and cpu"):
            torch._foreach_add([gpu], [cpu])


@computed_or_dry
def test_scalars_in_one_tensor_are_on_the_cpu(compute: bool) -> None:
    with simulate("24GiB", compute=compute):
        gpu = [torch.ones(3, device="cuda")]
        (result,) = torch._foreach_addcdiv(gpu, gpu, gpu, torch.ones(1))
        assert result.is_cuda
        with pytest.raises(RuntimeError, match=r"Expected scalars to be on CPU, got cuda:0"):
            torch._foreach_addcdiv(gpu, gpu, gpu, torch.ones(1, device="cuda"))


def test_tensors_of_two_gpus_do_not_add_up() -> None:
    with simulate("24GiB", count=2), pytest.raises(RuntimeError, match="cuda:0 and cuda:1"):
        torch._foreach_add([torch.ones(2, device="cuda:0")], [torch.ones(2, device="cuda:1")])


def test_a_scalar_to_the_power_of_tensors_takes_their_memory() -> None:
    with simulate("24GiB", count=2):
        tensors = [torch.ones(2, device="cuda:0"), torch.full((300,), 2.0, device="cuda:1")]
        before = [torch.cuda.memory_allocated(gpu) for gpu in (0, 1)]
        powers = torch._foreach_pow(0.5, tensors)
        after = [torch.cuda.memory_allocated(gpu) for gpu in (0, 1)]
        assert [b - a for a, b in zip(before, after, strict=True)] == [512, 1536]
        assert powers[1].unique().tolist() == [0.25]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_capturable_optimizers_step_on_two_gpus(name: str) -> None:
    def parameters_after_two_steps(foreach: bool) -> tuple[list[Any], set[tuple[str, str]]]:
        with simulate("24GiB", count=2):
            weights = [torch.full((4,), 3.0, device=f"cuda:{gpu}") for gpu in (0, 1)]
            optimizer = getattr(torch.optim, name)(weights, capturable=True, foreach=foreach)
            for weight in weights:
                weight.grad = torch.arange(4.0, device=weight.device)
            optimizer.step()
            optimizer.step()
            devices = {
                (str(weight.device), str(value.device))
                for weight, state in optimizer.state.items()
                for value in state.values()
                if isinstance(value, torch.Tensor)
            }
            return [weight.tolist() for weight in weights], devices

    one_by_one, _ = parameters_after_two_steps(foreach=False)
    together, devices = parameters_after_two_steps(foreach=True)
    for mine, other in zip(together, one_by_one, strict=True):
        assert mine == pytest.approx(other, rel=1e-5)
    assert devices == {("cuda:0", "cuda:0"), ("cuda:1", "cuda:1")}


def _groups(tensors: list[torch.Tensor], *others: list[Any]) -> dict[tuple[str, torch.dtype], Any]:
    group = torch.utils._foreach_utils._group_tensors_by_device_and_dtype
    found = group([tensors, *others], with_indices=True)
    return {(str(device), dtype): value for (device, dtype), value in found.items()}


@computed_or_dry
def test_lists_are_sorted_by_gpu_and_dtype(compute: bool) -> None:
    with simulate("24GiB", count=2, compute=compute):
        tensors = [
            torch.rand(3, device=device, dtype=dtype)
            for device, dtype in (
                ("cuda:0", torch.float32),
                ("cuda:1", torch.float32),
                ("cpu", torch.float32),
                ("cuda:0", torch.float16),
                ("cuda:0", torch.float32),
            )
        ]
        steps = [None, torch.ones(()), None, None, torch.zeros(())]
        found = _groups(tensors, steps)
        assert {key: indices for key, (_, indices) in found.items()} == {
            ("cuda:0", torch.float32): [0, 4],
            ("cuda:1", torch.float32): [1],
            ("cpu", torch.float32): [2],
            ("cuda:0", torch.float16): [3],
        }
        lists, _ = found["cuda:0", torch.float32]
        assert lists[0][1] is tensors[4]
        assert lists[1] == [None, steps[4]]
        plain = torch.utils._foreach_utils._group_tensors_by_device_and_dtype([tensors])
        assert {tuple(indices) for _, indices in plain.values()} == {()}


@pytest.mark.parametrize(
    "kind",
    [
        torch.optim.SGD,
        pytest.param(
            torch.optim.Adagrad,
            marks=pytest.mark.skipif(RELEASE < (2, 7), reason="torch 2.6 fuses no Adagrad on GPUs"),
        ),
    ],
)
def test_a_fused_optimizer_takes_the_scale_of_gradients_to_its_gpu(kind: Any) -> None:
    def weight(device: str) -> torch.Tensor:
        weight = torch.ones(5, 5, device=device, requires_grad=True)
        weight.grad = torch.full_like(weight, 15.0)
        optimizer = kind([weight], lr=0.1, fused=True)
        optimizer.grad_scale = torch.tensor([3.0], device=device)
        scaler = torch.amp.GradScaler(device, init_scale=5)
        scaler.scale(torch.ones(5, device=device))
        scaler.step(optimizer)
        return weight.detach().cpu()

    expected = weight("cpu")
    with simulate("24GiB", count=2):
        torch.testing.assert_close(weight("cuda:0"), expected)


def test_gradients_of_two_gpus_are_clipped_on_each() -> None:
    with simulate("24GiB", count=2):
        tensors = [torch.ones(4, device=f"cuda:{gpu}", requires_grad=True) for gpu in (0, 1)]
        for tensor in tensors:
            tensor.grad = torch.full_like(tensor, 3.0)
        norm = torch.nn.utils.clip_grad_norm_(tensors, 1.0)
        assert str(norm.device) == "cuda:0"
        assert norm.item() == pytest.approx(72**0.5)
        for tensor in tensors:
            assert tensor.grad.tolist() == pytest.approx([3 / 72**0.5] * 4)


LONG_AND_SHORT = {
    (2, 14): lambda width: [2 * 2 * width],  # a row of as many chunks for each tensor
    (2, 15): lambda width: [(2 + 1) * 8, 3 * width],  # where those of each begin, and all of them
}


@pytest.mark.parametrize("release", LONG_AND_SHORT)
@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 4), (torch.bfloat16, 4)])
def test_norms_of_many_tensors_collect_those_of_chunks(dtype, width, release, monkeypatch):
    monkeypatch.setattr(pointwise, "RELEASE", release)
    make = lambda: [randn(65537, dtype=dtype), randn(10, dtype=dtype)]  # noqa: E731
    size = dtype.itemsize
    for op, each in ((torch._foreach_norm, width), (torch._foreach_max, size)):
        chunks = LONG_AND_SHORT[release](each)
        freed = [-nbytes for nbytes in reversed(chunks)]
        assert events(op, make) == [*chunks, size, size, *freed]
    other = lambda tensors: torch._foreach_norm(tensors, 3)  # noqa: E731
    assert events(other, lambda: [randn(10)]) == [4]


def test_from_torch_2_15_on_empty_tensors_have_no_chunks(monkeypatch):
    monkeypatch.setattr(pointwise, "RELEASE", (2, 15))
    make = lambda: [randn(70_000), randn(0)]  # noqa: E731
    assert events(torch._foreach_norm, make) == [2 * 8, 2 * 4, 4, 4, -2 * 4, -2 * 8]


def test_norms_of_unlike_tensors_are_taken_one_by_one():
    make = lambda: [randn(10**6), randn(10**6).double()]  # noqa: E731
    expected = [4, 8, *temporaries(123 * 4, 4), *temporaries(123 * 8, 4)]
    assert events(torch._foreach_norm, make) == expected
