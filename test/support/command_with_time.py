"""The command with more time for trials of remedies: other tests may run beside it.

Trials are forks of the process as it is before it has imported anything of this package.
"""

from pathlib import Path

WITH_TIME = f"""\
import sys
sys.path.append({str(Path(__file__).parents[1])!r})
from support.python_process import forks_are_of_this
forks_are_of_this()
from support.forked_trials import ForkedTrial
sys.path.pop()
from pytorch_memlab.fitting import child
child._NewPython = ForkedTrial
from pytorch_memlab.advice import trials
from pytorch_memlab.cli.main import entry
trials._LEAST_SECONDS = trials.MOST_SECONDS = 250.0
sys.exit(entry())
"""
