"""The sample of the documentation as plain data, for tests of records and renderers."""

from pytorch_memlab.line_profiler.line_records import LineRecords
from pytorch_memlab.records import (
    Approximation,
    ApproximationKind,
    DeviceInfo,
    FunctionInfo,
    LineEntry,
    Report,
)

CUDA0 = DeviceInfo("cuda:0", "NVIDIA H100 80GB HBM3", simulated=True)
CUDA1 = DeviceInfo("cuda:1", "NVIDIA H100 80GB HBM3", simulated=True)

OUTER = FunctionInfo(
    "outer",
    "sample.py",
    7,
    (
        "def outer():",
        "    linear = torch.nn.Linear(100, 100).cuda()",
        "    linear2 = torch.nn.Linear(100, 100).cuda()",
        "    inner()",
    ),
)
INNER = FunctionInfo(
    "inner", "sample.py", 4, ("def inner():", "    torch.nn.Linear(100, 100).cuda()")
)

KIB = 1024
MIB = 1024 * 1024

SAMPLE_TEXT = """\
## outer

active_bytes reserved_bytes line  code
         all            all
        peak           peak
       0.00B          0.00B    7  def outer():
      40.00K          2.00M    8      linear = torch.nn.Linear(100, 100).cuda()
      80.00K          2.00M    9      linear2 = torch.nn.Linear(100, 100).cuda()
     120.00K          2.00M   10      inner()


## inner

active_bytes reserved_bytes line  code
         all            all
        peak           peak
      80.00K          2.00M    4  def inner():
     120.00K          2.00M    5      torch.nn.Linear(100, 100).cuda()
"""


def entry(
    code_id: int,
    line: int,
    active: int,
    reserved: int = 2 * MIB,
    *,
    device: DeviceInfo = CUDA0,
    hits: int = 1,
    time: float = 0.001,
    delta: int = 0,
    approximations: tuple[Approximation, ...] = (),
) -> LineEntry:
    """A line with the two statistics of the default columns."""
    stats = {"active_bytes.all.peak": active, "reserved_bytes.all.peak": reserved}
    sizes = max(delta, 0), max(-delta, 0)
    return LineEntry(code_id, line, device, hits, time, *sizes, stats, approximations)


SAMPLE_ENTRIES = (
    entry(1, 7, 0, 0),
    entry(1, 8, 40 * KIB, delta=40 * KIB),
    entry(1, 9, 80 * KIB, delta=40 * KIB),
    entry(1, 10, 120 * KIB),
    entry(2, 4, 80 * KIB),
    entry(2, 5, 120 * KIB),
)


def sample_records(*notes: str) -> LineRecords:
    """The records of the sample."""
    return LineRecords(SAMPLE_ENTRIES, {1: OUTER, 2: INNER}, notes)


def sample_report(*notes: str) -> Report:
    """The report of the sample."""
    return sample_records(*notes).display().report


QR = Approximation(ApproximationKind.UNMODELLED, "linalg_qr", 2, KIB)
CONVOLUTION = Approximation(
    ApproximationKind.UNCOUNTED,
    "convolution",
    3,
    unknown="cuDNN workspaces",
    at_most=4096,
    gives_way=True,
)
MEAN = Approximation(ApproximationKind.ESTIMATED, "mean", 1, 3 * MIB)
ITEM = Approximation(
    ApproximationKind.ASSUMED, "Tensor.item", 2, assumption="0", place="sample.py:5"
)


def marked_report(*notes: str) -> Report:
    """The report of the sample where a simulation does not know all of three lines."""
    entries = (
        entry(1, 7, 0, 0),
        entry(1, 8, 40 * KIB, delta=40 * KIB, approximations=(MEAN,)),
        entry(1, 9, 80 * KIB, delta=40 * KIB),
        entry(1, 10, 120 * KIB, approximations=(MEAN, QR, ITEM)),
        entry(2, 4, 80 * KIB),
        entry(2, 5, 120 * KIB, approximations=(ITEM,)),
    )
    return LineRecords(entries, {1: OUTER, 2: INNER}, notes).display().report


MARKED_TEXT = """\
## outer

active_bytes reserved_bytes line  code
         all            all
        peak           peak
       0.00B          0.00B    7  def outer():
      40.00K          2.00M    8~     linear = torch.nn.Linear(100, 100).cuda()
      80.00K          2.00M    9      linear2 = torch.nn.Linear(100, 100).cuda()
     120.00K          2.00M   10*     inner()

line 8: estimated: mean (1 call, 3.0 MiB of kernel memory)
line 10: not modelled: linalg_qr (2 calls, 1.0 KiB of outputs in all)
line 10: estimated: mean (1 call, 3.0 MiB of kernel memory)
line 10: dry run: Tensor.item (2 times, assumed 0): a real run may branch differently


## inner

active_bytes reserved_bytes line  code
         all            all
        peak           peak
      80.00K          2.00M    4  def inner():
     120.00K          2.00M    5*     torch.nn.Linear(100, 100).cuda()

line 5: dry run: Tensor.item (2 times, assumed 0): a real run may branch differently
"""
