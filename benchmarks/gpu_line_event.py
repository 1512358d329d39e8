"""The cost of one line event on the GPU of this machine, and the original's."""

import torch

from benchmarks.line_event import report
from benchmarks.timing import arguments, heading

arguments(__doc__)
if torch.cuda.is_available():
    report(f"A line event, on {torch.cuda.get_device_name(0)}", "real", targets=False)
else:
    heading("A line event, on a real GPU: left out, this machine has none")
