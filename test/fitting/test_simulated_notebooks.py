"""``fit`` in a process that simulates GPUs itself, with the model on one of them already."""

from __future__ import annotations

import pytest
import torch

import pytorch_memlab
from pytorch_memlab import simulate
from pytorch_memlab.errors import UsageError
from pytorch_memlab.fitting import child
from pytorch_memlab.fitting.target import FunctionTarget
from pytorch_memlab.fitting.used_tensors import used_tensors

MIB = 2**20


def bytes_on_gpu(size, device="cuda"):
    return torch.zeros(size * MIB, dtype=torch.uint8, device=device)


class Trainer:
    """A model and its optimizer, on the GPU."""

    def __init__(self, device="cuda"):
        self.device = device
        self.model = torch.nn.Linear(1024, 1024).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def step(self):
        batch = torch.zeros(8, 1024, device=self.device)
        self.model(batch).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def fresh():
    """The same, with the model made in the function."""
    made = []

    def step():
        if not made:
            made.append(Trainer())
        made[0].step()

    return step


@pytest.fixture
def _forks(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(child, "can_fork", lambda: False)


def peaks(step, **options):
    frame = pytorch_memlab.fit(step, gpus="t4", steps=3, **options)
    assert frame.report.error == ""
    return frame.active_peak["t4"]


@pytest.mark.parametrize("_forks", [True, False], indirect=True, ids=["fork", "new Python"])
@pytest.mark.usefixtures("_forks")
def test_the_model_of_a_simulated_notebook_takes_what_one_made_in_the_function_takes():
    expected = peaks(fresh())
    with simulate("2GiB"):
        trainer = Trainer()
        assert peaks(trainer.step) == expected
        trainer.step()  # now with its states
        assert peaks(trainer.step) == expected


def test_what_the_function_does_not_use_does_not_count():
    with simulate("2GiB"):
        others = [bytes_on_gpu(600)]
        used = bytes_on_gpu(40)
        assert peaks(lambda: used + 1) == 80 * MIB
        # It is on its GPU all the same.
        assert peaks(lambda: (used, len([one for one in others if one.is_cuda]))) == 640 * MIB


def test_the_program_here_keeps_its_gpus_and_tensors():
    with simulate("2GiB") as machine:
        used = bytes_on_gpu(40)
        with torch.no_grad():
            peaks(lambda: used.zero_())
        assert torch.cuda.memory_allocated() == 40 * MIB
        assert (machine.gpu_of(used).index, bool(used.any())) == (0, False)


def test_tensors_on_another_gpu_ask_for_as_many_gpus():
    with simulate("2GiB", 2):
        used = bytes_on_gpu(40, "cuda:1")
        with pytest.raises(UsageError, match=r"uses tensors on cuda:1: fit\(\.\.\., num_gpus=2\)$"):
            pytorch_memlab.fit(lambda: used + 1, gpus="t4")
        frame = pytorch_memlab.fit(lambda: used + 1, gpus="t4", num_gpus=2)
        assert (frame.report.verdicts[0].device, frame.active_peak["t4"]) == (1, 80 * MIB)


def test_the_default_device_holds_in_the_run():
    with simulate("2GiB"):
        torch.set_default_device("cuda")
        try:
            assert peaks(lambda: torch.zeros(MIB, dtype=torch.uint8)) == MIB
        finally:
            torch.set_default_device(None)


def test_a_simulation_without_values_has_none_in_the_run_either():
    with simulate("2GiB", compute=False):
        used = torch.randn(MIB, device="cuda")
        frame = pytorch_memlab.fit(lambda: used.sum().item(), gpus="t4", steps=1)
    assert [one.name for one in frame.report.approximations] == ["Tensor.item"]


class OnRealGPU(torch.Tensor):
    """Stands for a tensor of a GPU that is there."""

    is_cuda = property(lambda _self: True)


def test_tensors_of_a_real_gpu_go_to_a_new_python():
    tensor = torch.zeros(1).as_subclass(OnRealGPU)
    assert FunctionTarget(lambda: tensor).uses_real_gpu()
    with simulate("2GiB"):
        assert not FunctionTarget(lambda: tensor).uses_real_gpu()
    assert not FunctionTarget(lambda: None).uses_real_gpu()


# What a function uses

GLOBAL = torch.zeros(1)
OTHER = torch.zeros(1)


def names_global():
    return [GLOBAL for _ in range(2)]


class Holder:
    """An object with slots and a class with a tensor."""

    __slots__ = ("own",)
    shared = torch.zeros(2)

    def __init__(self, own):
        self.own = own

    def method(self):
        return names_global()


def generator(tensor):
    yield tensor


def tensors_of(*roots):
    return {id(one) for one in used_tensors(*roots)}


def test_globals_closures_defaults_slots_classes_and_frames_are_followed():
    def default(tensor=OTHER):
        return tensor

    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    started = generator(OTHER)
    next(started)
    assert tensors_of(names_global) == {id(GLOBAL)}
    assert tensors_of(default) == {id(OTHER)}
    assert tensors_of(Holder(OTHER).method) == {id(OTHER), id(Holder.shared), id(GLOBAL)}
    assert tensors_of(lambda: parameter) == {id(parameter), id(parameter.grad)}
    assert tensors_of(started) == {id(OTHER)}
    assert tensors_of(globals(), torch) == set()
