"""DLPack: what leaves the simulation by it, as NumPy and torch meet it on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pytorch_memlab import simulate
from pytorch_memlab.simulation.machine.torch_release import RELEASE

_REFUSED = r"^Unsupported device in DLTensor\.$"

has_devices = pytest.mark.skipif(RELEASE < (2, 7), reason="torch 2.6 exports to no other device")


def test_numpy_refuses_the_memory_of_a_gpu():
    with simulate("1GiB"):
        tensor = torch.ones(4, device="cuda")
        for exporter in (tensor, _Capsule(torch.utils.dlpack.to_dlpack(tensor))):
            with pytest.raises((BufferError, RuntimeError), match=_REFUSED):
                np.from_dlpack(exporter)
        del exporter
        del tensor
        assert torch.cuda.memory_allocated() == 0
        assert np.from_dlpack(torch.ones(4)).sum() == 4


class _Capsule:
    """An array of another library, which passes on what it holds."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **_how):
        return self.capsule


@has_devices
def test_numpy_takes_a_copy_where_it_asks_for_the_cpu():
    with simulate("1GiB"):
        tensor = torch.ones(4, device="cuda")
        array = np.from_dlpack(tensor, device="cpu")
        tensor.zero_()
        assert (array.tolist(), torch.cuda.memory_allocated()) == ([1.0] * 4, 512)
        with pytest.raises(
            ValueError,
            match=r"^cannot move \(i\.e\. copy=False\) tensor from cuda:0 to cpu without",
        ):
            np.from_dlpack(tensor, device="cpu", copy=False)


@has_devices
def test_torch_takes_the_memory_or_a_copy():
    with simulate("1GiB", 2):
        tensor = torch.ones(4, device="cuda")
        shared = torch.from_dlpack(tensor, device="cuda:0", copy=False)
        assert (shared.device, shared.data_ptr()) == (tensor.device, tensor.data_ptr())
        copied = torch.from_dlpack(tensor, copy=True)
        assert (copied.device, torch.cuda.memory_allocated()) == (tensor.device, 1024)
        moved = tensor.__dlpack__(dl_device=(2, 1))
        assert torch.cuda.memory_allocated(1) == 512
        assert torch.from_dlpack(moved).device == torch.device("cuda", 1)


@has_devices
def test_a_capsule_frees_its_memory():
    with simulate("1GiB"):
        capsule = torch.ones(4, device="cuda").__dlpack__(max_version=(1, 0))
        assert torch.cuda.memory_allocated() == 512
        del capsule
        assert torch.cuda.memory_allocated() == 0


def test_what_is_no_capsule_is_refused_in_torchs_words():
    with pytest.raises(Exception) as plain:  # noqa: PT011 - compared below
        torch._C._from_dlpack(3)
    with simulate("1GiB"), pytest.raises(type(plain.value)) as simulated:
        torch._C._from_dlpack(3)
    assert str(simulated.value) == str(plain.value)
