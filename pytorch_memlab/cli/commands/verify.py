"""Compare a program on a GPU with the same program simulated.

The program runs once on the GPU of this machine, with PyTorch's memory history, and once
simulated on the same GPU with the same settings of the allocator. The answer says if both
allocate and free the same, event by event, in order; and if not, the peaks, the first
differences, the lines that differ, and the marks (?, ~ or *) of these lines.

Without a GPU, --recorded takes a recording of another machine: a memory snapshot of
torch.cuda.memory._dump_snapshot(), or a profile of run --history. It may begin and end
anywhere in the program.

for example:
  pytorch-memlab verify train.py --epochs 1
  pytorch-memlab verify --steps 3 -o train.memlab-recording.json.gz train.py
  pytorch-memlab verify --recorded snapshot.pickle --gpu a100 train.py

exit codes:
  0  all is equal
  1  something differs, or the file could not be written
  2  nothing could be compared: the command line cannot be carried out, or the
     program failed before it used a GPU
"""

from __future__ import annotations

import argparse
import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from ..._common.process.standard_output import print_to_stdout
from ..._common.text.near_files import why_not_opened
from ..._common.text.quoted import shortened
from ...errors import MemlabError, UsageError
from ...render.output_format import VerifiedResults
from ...simulation.inspect import DEFAULT_GPU, find_gpu
from ..common_options import GPU_SPEC, add_program, number_from
from ..exit_codes import FAILED, USAGE_ERROR
from ..notices import tell
from ..output import OutputFile
from ..parser import CommandParser

if TYPE_CHECKING:
    from ...history.model import AllocationHistory
    from ...profiles.recorded import RecordedProfile

_LAST_LINES: Final = 8
"""How many lines of a failed program are shown."""


def add_arguments(parser: CommandParser) -> None:
    parser.usage = "%(prog)s [options] (SCRIPT | -m MODULE) [ARGS ...]"
    parser.hint_on_unknown = "; options of the script go after it: verify SCRIPT ARGS"
    add_program(parser.group("what to run"))
    add = parser.group("what to compare")
    add("--recorded FILE", "compare with this recording; the program runs simulated alone")
    add(
        f"--gpu {GPU_SPEC}",
        f"simulate this GPU (default: that of this machine; {DEFAULT_GPU} with --recorded)",
    )
    add(
        "--steps N",
        "end the program after N optimizer steps, in both runs",
        type=number_from(1, "optimizer steps"),
    )
    add(
        "--compute",
        "compute values in the simulation too: for a program whose sizes depend on them. The"
        " simulated program then writes its files as the real one does. By default it has no"
        " values, and changes no file that is there",
        action="store_true",
    )
    add = parser.group("output")
    add(
        "-o --output FILE",
        "write the recording and the answer to one file (.json.gz), for the report of a wrong"
        " number. It has the names of the program's files and functions, no folders, no source"
        " and no arguments",
        dest="output",
    )


def prepare(options: argparse.Namespace, _process: ExitStack, /) -> Callable[[], int]:
    import torch

    if options.gpu is not None:
        find_gpu(options.gpu)
    file = None if options.output is None else OutputFile(options.output, VerifiedResults)
    if options.recorded is None and not torch.cuda.is_available():
        raise UsageError(
            "this machine has no CUDA GPU to run the program on: --recorded FILE takes a recording"
            " of another one, such as a snapshot of torch.cuda.memory._dump_snapshot()"
        )
    if not options.is_module and not os.path.isfile(options.script):
        missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        reason = why_not_opened(missing, options.script, is_script=True)
        raise UsageError(f"cannot open the script {options.script}: {reason}")
    recorded = None if options.recorded is None else _recorded(options.recorded)
    return partial(_verify, options, recorded, file)


def _recorded(path: str) -> AllocationHistory:
    from ...history.snapshot import read_snapshot
    from ...saved import profile_file

    profile = profile_file.read_if_saved(path)
    if profile is not None:
        history = profile.history
        if history is None:
            raise UsageError(f"{path}: {profile_file.NO_HISTORY}")
    else:
        history = read_snapshot(path)
    if not any(history.of_device(device).events for device in history.used_devices()):
        raise UsageError(
            f"{path} has no events: record them with torch.cuda.memory._record_memory_history()"
            " before the program allocates"
        )
    return history


def _verify(
    options: argparse.Namespace,
    recorded: AllocationHistory | None,
    file: OutputFile[VerifiedResults] | None,
) -> int:
    from ...history.model import AllocationHistory
    from ...profiles.verification import verification
    from ...render import verification as rendered

    is_whole = recorded is None
    try:
        with tempfile.TemporaryDirectory(prefix="pytorch-memlab-verify-") as folder:
            real, gpu = None, options.gpu
            if recorded is None:
                real = _run(options, folder, "on the GPU", [], {})
                recorded = real.history or AllocationHistory([], ())
                gpu = _gpu_of(real) if gpu is None else gpu
            settings = _settings(recorded, real is not None)
            how = [
                "--gpu",
                DEFAULT_GPU if gpu is None else gpu,
                *([] if options.compute else ["--dry-run"]),
            ]
            simulated = _run(options, folder, "in the simulation", how, settings)
        name = options.recorded or f"{options.script} on {_gpu_of(real)}"
        answer = verification(os.path.basename(name), recorded, simulated, is_whole=is_whole)
    except MemlabError as error:
        tell(f"verify: {error}")
        return USAGE_ERROR
    except LookupError as error:
        tell(f"verify: nothing to compare: {error.args[0]}")
        return USAGE_ERROR
    print_to_stdout(rendered.text(answer))
    versions = (real or simulated).runs[0].versions
    results = VerifiedResults(recorded, answer, versions)
    if file is not None and not file.write(results, "recording and answer"):
        return FAILED
    return 0 if answer.is_equal else FAILED


def _run(
    options: argparse.Namespace,
    folder: str,
    where: str,
    how: Sequence[str],
    settings: Mapping[str, str],
) -> RecordedProfile:
    """The profile of a run in another process, with its history."""
    from ...saved import profile_file

    path = os.path.join(folder, f"{'simulated' if how else 'real'}.json")
    command = [sys.executable, "-m", "pytorch_memlab", "run", "--no-try", "--history", "-o", path]
    if options.steps is not None:
        command += ["--steps", str(options.steps)]
    command += [*how, *(["-m"] if options.is_module else []), options.script, *options.arguments]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, **settings},
        check=False,
    )
    profile = profile_file.read(path) if os.path.exists(path) else None
    if profile is None or not profile.history or not profile.history.used_devices():
        last = "\n".join(f"  {line}" for line in done.stderr.splitlines()[-_LAST_LINES:])
        raise UsageError(
            f"the program used no GPU {where}, and ended with exit code {done.returncode}:\n{last}"
        )
    [run] = profile.runs
    if run.exception:
        tell(f"verify: the program ended with an error {where}: {shortened(run.exception)}")
    return profile


def _gpu_of(profile: RecordedProfile | None) -> str:
    if profile is None or not profile.devices:
        raise UsageError("the program used no GPU")
    return profile.devices[0].device.description


def _settings(recorded: AllocationHistory, is_of_this_machine: bool) -> dict[str, str]:
    """The allocator's settings of a recording, as the environment has them."""
    if is_of_this_machine:
        return {}
    text = str(recorded.settings.get("PYTORCH_CUDA_ALLOC_CONF") or "")
    if not text and recorded.settings.get("expandable_segments") is True:
        text = "expandable_segments:True"
    return {"PYTORCH_CUDA_ALLOC_CONF": text} if text else {}
