"""``pytorch-memlab peak``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from pytorch_memlab.cli.parser import CommandParser
from pytorch_memlab.errors import UsageError

if TYPE_CHECKING:
    from pytorch_memlab.history.model import AllocationHistory


class PeakCommand:
    """Show what holds the GPU memory at the peak of a memory snapshot.

    The file is one that torch.cuda.memory._dump_snapshot() wrote, on a GPU or a simulated one.
    Nothing in it is executed. Each row is a line of the program, with the bytes that it allocated
    and that are in use at the moment of the highest active bytes. The rows add up to that peak.

    for example:
      pytorch-memlab peak snapshot.pickle
      pytorch-memlab peak --by function --top 5 snapshot.pickle
    """

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        add = parser.add_argument_group("what to show").add_argument
        add(
            "--by",
            choices=("line", "function", "stack"),
            default="line",
            help="add up by line of the program (the default), by function, or by stack: collapsed"
            " stacks that flame graph viewers read",
        )
        add("--top", type=int, metavar="N", help="show the N largest rows (default: 20)")
        add("--all", action="store_true", help="show all rows")
        add("--device", type=int, metavar="N", help="show this GPU (default: all that were used)")
        parser.add_argument("file", metavar="FILE", help="the snapshot")

    def prepare(self, options: argparse.Namespace, process: ExitStack) -> Callable[[], None]:
        """Read the file.

        Args:
            options: what was given.
            process: not needed.

        Returns:
            What prints the peak.

        Raises:
            UsageError: an option cannot be carried out.
            SnapshotError: the file is no snapshot.
        """
        from pytorch_memlab.cli.recorded_devices import recorded_devices
        from pytorch_memlab.history.snapshot import read_snapshot

        del process
        if options.top is not None and options.top < 1:
            raise UsageError(f"--top is a number of rows from 1 on, not {options.top}")
        history = read_snapshot(options.file)
        devices = recorded_devices(history, options.file, options.device)
        top = None if options.all else options.top or 20
        return partial(_show, history, devices, options.by, top)


def _show(history: AllocationHistory, devices: list[int], by: str, top: int | None) -> None:
    from pytorch_memlab.history.holders import peak_holders
    from pytorch_memlab.render import peak

    texts = []
    for device in devices:
        holders = peak_holders(history, device)
        texts.append(holders.collapsed_stacks() if by == "stack" else peak.text(holders, top, by))
    print("\n".join(texts), end="")
