"""The command with more time for trials of remedies: other tests may run beside it."""

WITH_TIME = """\
import sys
from pytorch_memlab.advice import trials
from pytorch_memlab.cli.main import entry
trials._LEAST_SECONDS = trials.MOST_SECONDS = 250.0
sys.exit(entry())
"""
