"""Errors of libraries that found no GPU memory, explained on GPUs that stand in for real ones."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch
from support.blind import blind

from pytorch_memlab import explain_oom, simulate
from pytorch_memlab.advice.causes.fragmentation import AllocatorSetting
from pytorch_memlab.simulation.machine.runtime_settings import settings_string

MIB = 2**20

CUBLAS = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled cuda error "
    "(run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\n"
    "Last error:\nCuda failure 2 'out of memory'"
)
FULL = {
    CUBLAS: "cuBLAS",
    NCCL: "NCCL",
    NCCL.replace("Cuda failure 2 'out of memory'", "Failed to CUDA calloc 10485760 bytes"): "NCCL",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED": "cuDNN",
    "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`": (
        "cuSOLVER"
    ),
    "cuFFT error: CUFFT_ALLOC_FAILED": "cuFFT",
    "CUDA error: out of memory\nCUDA kernel errors might be reported late": "CUDA",
    "CUDA driver error: out of memory": "CUDA",
    "parallel_for failed: cudaErrorMemoryAllocation: out of memory": "CUDA",
    "Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY": "CUDA",
    "Triton Error [CUDA]: out of memory": "Triton",
    "HIP error: out of memory": "HIP",
    "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`": "cuBLAS",
}
OTHERS = (
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: device-side assert triggered",
    "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`",
    NCCL.replace("Cuda failure 2 'out of memory'", "Cuda failure 700 'illegal memory access'"),
    "out of memory",
)


def raised(error: BaseException) -> str:
    """The text that ``explain_oom()`` prints in the handler of an error."""
    try:
        raise error
    except type(error):
        return str(explain_oom())


@pytest.mark.parametrize("text", FULL)
def test_the_library_is_named(text: str) -> None:
    first = raised(RuntimeError(text)).partition("\n")[0]
    assert first == (
        f"{FULL[text]} found no GPU memory: it asks the driver, not PyTorch's allocator."
    )


@pytest.mark.parametrize("text", OTHERS)
def test_other_errors_are_not_for_lack_of_memory(text: str) -> None:
    line = "<explain_oom: the last error, RuntimeError, was not for lack of GPU memory>"
    assert raised(RuntimeError(text)) == line
    assert raised(ValueError(CUBLAS)) == line.replace("RuntimeError", "ValueError")


def test_the_state_of_the_gpu_and_what_may_help() -> None:
    with blind(), simulate("1GiB", context="100MiB"):
        kept, freed = (torch.empty(40 * MIB, dtype=torch.uint8, device="cuda") for _ in range(2))
        del freed
        assert raised(RuntimeError(CUBLAS)) == (
            "cuBLAS found no GPU memory: it asks the driver, not PyTorch's allocator.\n"
            "  cuda:0  844.0 MiB of 1.00 GiB free, PyTorch holds 80.0 MiB, 40.0 MiB of it cached\n"
            "What may help:\n"
            "  torch.cuda.empty_cache() before this line gives back at most 40.0 MiB\n"
            "  torch.cuda.set_per_process_memory_fraction(0.9, 0) at the start leaves 102.4 MiB to"
            " others"
        )
        del kept


def test_an_error_of_cuda_may_be_late_and_may_last(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise torch.AcceleratorError("CUDA error: out of memory")

    with blind(), simulate("1GiB"):
        torch.ones(1, device="cuda")
        monkeypatch.setattr(torch.cuda, "mem_get_info", fails)
        found = raised(torch.AcceleratorError("CUDA error: out of memory"))
        monkeypatch.undo()
    assert found == (
        "CUDA found no GPU memory: it asks the driver, not PyTorch's allocator.\n"
        "CUDA may tell late: CUDA_LAUNCH_BLOCKING=1 makes the line that failed raise it.\n"
        "What may help:"
    )


def test_the_report_follows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with blind(), simulate("1GiB"):
        torch.ones(1, device="cuda")
        try:
            with explain_oom():
                raise torch.distributed.DistBackendError(NCCL)
        except RuntimeError as error:
            sys.excepthook(type(error), error, error.__traceback__)
    shown = capsys.readouterr().err
    assert shown.index("Cuda failure 2") < shown.index("NCCL found no GPU memory")
    last = "  NCCL_BUFFSIZE=1048576 makes its buffers smaller than the usual 4 MiB\n"
    assert shown.endswith(last)


def test_an_error_of_pytorch_comes_before_one_of_a_library() -> None:
    with blind(), simulate("1GiB") as machine, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert machine.gpus
        try:
            try:
                raise RuntimeError(CUBLAS)
            except RuntimeError:
                torch.empty(2**31, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            found = str(explain_oom())
    assert "cuBLAS found" not in found
    assert found.startswith("Out of memory on cuda:0")


def test_the_error_of_rocm_is_explained_as_that_of_cuda() -> None:
    with blind(), simulate("64MiB"):
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(65 * MIB, dtype=torch.uint8, device="cuda")
        text = str(caught.value).replace("CUDA out of memory", "HIP out of memory")
        found = raised(torch.OutOfMemoryError(text))
    assert found.startswith("Out of memory on cuda:0")
    assert "66.0 MiB is larger than the GPU, which has 64.0 MiB" in found


def test_rocm_has_its_own_variable_for_settings_of_the_allocator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"PYTORCH_HIP_ALLOC_CONF": "max_split_size_mb:64", "PYTORCH_ALLOC_CONF": ""}
    assert settings_string(settings) == ""
    monkeypatch.setattr(torch.version, "hip", "7.1.25424")
    assert settings_string(settings) == "max_split_size_mb:64"
    change = AllocatorSetting("fragmentation", "expandable_segments", "True")
    assert change.finding().code == ("PYTORCH_HIP_ALLOC_CONF=expandable_segments:True",)
