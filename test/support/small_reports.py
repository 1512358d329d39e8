"""Reports of the memory reporter on a simulated GPU, and parts of them."""

from __future__ import annotations

import contextlib
import io

import torch
import torch._dynamo  # optimizers import it, and it wraps torch.manual_seed

from pytorch_memlab.mem_reporter import MemReporter

CUDA = torch.device("cuda:0")
CPU = torch.device("cpu")
META = torch.device("meta")


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
