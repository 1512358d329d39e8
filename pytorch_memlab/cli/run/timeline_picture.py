"""``run -o step.svg``: a picture of the GPU memory of the whole run over time."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytorch_memlab._common.ranks import path_of_rank, prints
from pytorch_memlab.cli.output_file import OutputFile
from pytorch_memlab.simulation.inspect import active

if TYPE_CHECKING:
    from pytorch_memlab.cli.run.profile import Profile
    from pytorch_memlab.history.model import AllocationHistory
    from pytorch_memlab.history.timeline import Timeline
    from pytorch_memlab.history.whole_run import WholeRunHistory

    _Drawing = tuple[Sequence[Timeline], str]

_ENDINGS = (".svg", ".png")


def is_picture(path: str) -> bool:
    """True for a name that ends in ``.svg`` or ``.png``."""
    return path.lower().endswith(_ENDINGS)


class TimelinePicture:
    """The file that gets the timeline of a run, checked before there is one."""

    def __init__(self, path: str, command: str) -> None:
        from pytorch_memlab.render import timeline_picture
        from pytorch_memlab.render.picture import check_installed

        self._file: OutputFile[_Drawing] = OutputFile(
            path_of_rank(path),
            {
                ".svg": lambda drawing: timeline_picture.svg(*drawing),
                ".png": lambda drawing: timeline_picture.png(*drawing),
            },
        )
        check_installed()
        self._command = command
        self._process = os.getpid()

    def finish(self, profile: Profile, whole_run: WholeRunHistory) -> None:
        """Draw and write it; not in a process that the program forked."""
        if os.getpid() != self._process:
            return
        import torch

        from pytorch_memlab.history.timeline import timeline_of

        history = _history(profile, whole_run)
        used = [one.device for one in history.devices if one.events or one.segments]
        if not used:
            print("no timeline is drawn: the program used no GPU", file=sys.stderr)
            return
        gpus = [torch.cuda.get_device_properties(device) for device in used]
        timelines = [
            timeline_of(history, device, gpu.total_memory)
            for device, gpu in zip(used, gpus, strict=True)
        ]
        names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
        kind = ", simulated" if active.machine is not None else ""
        self._file.write(
            (timelines, f"{self._command} · {names}{kind}"), "timeline", says_where=prints()
        )


def _history(profile: Profile, whole_run: WholeRunHistory) -> AllocationHistory:
    """All allocations of the run; nothing if the program used no GPU."""
    import torch

    from pytorch_memlab.history.model import AllocationHistory
    from pytorch_memlab.history.snapshot import history_of

    if active.machine is not None:
        return profile.history()
    if not torch.cuda.is_initialized():
        return AllocationHistory((), ((),))
    return history_of(whole_run.snapshot())
