"""``%imu_start`` and ``%imu_stop``, which load neither torch nor numpy."""

from __future__ import annotations

from IPython.core.magic import Magics, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from .._common.process.switch import SWITCHED_OFF, is_switched_off
from .memory_usage import start_watching_memory, stop_watching_memory
from .option_words import words_before_comment


@magics_class
class ImuMagics(Magics):
    """Line magics for the memory of the host."""

    @magic_arguments()
    @argument(
        "--perf",
        metavar="EVENT",
        help="Count this event with Linux' perf stat, such as cache-misses, where perf is there.",
    )
    @line_magic
    def imu_start(self, line: str) -> str:
        """Print a line on memory, time and processors after every command."""
        args = self.imu_start.parser.parse_args(words_before_comment(line))
        if is_switched_off():
            return SWITCHED_OFF
        start_watching_memory(args.perf)
        return "IPython Memory Usage started"

    @line_magic
    def imu_stop(self, line: str) -> str:
        """Print no more lines after commands."""
        stop_watching_memory()
        return "IPython Memory Usage stopped"
