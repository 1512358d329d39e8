"""The seed's sample as plain data, for the tests of records and renderers."""

from pytorch_memlab.line_profiler.line_records import LineRecords
from pytorch_memlab.records import DeviceInfo, FunctionInfo, LineEntry, Report

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

SEED_TEXT = """\
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
) -> LineEntry:
    """A line with the two statistics of the default columns."""
    stats = {"active_bytes.all.peak": active, "reserved_bytes.all.peak": reserved}
    return LineEntry(code_id, line, device, hits, time, delta, stats)


SEED_ENTRIES = (
    entry(1, 7, 0, 0),
    entry(1, 8, 40 * KIB, delta=40 * KIB),
    entry(1, 9, 80 * KIB, delta=40 * KIB),
    entry(1, 10, 120 * KIB),
    entry(2, 4, 80 * KIB),
    entry(2, 5, 120 * KIB),
)


def seed_records(*notes: str) -> LineRecords:
    """The records of the seed's sample."""
    return LineRecords(SEED_ENTRIES, {1: OUTER, 2: INNER}, notes)


def seed_report(*notes: str) -> Report:
    """The report of the seed's sample."""
    return seed_records(*notes).display().report
