"""Ops on lists of tensors: each result is where its own tensor is, whatever comes first."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytorch_memlab import simulate

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


@pytest.mark.parametrize("compute", [True, False])
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
