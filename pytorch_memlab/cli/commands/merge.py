"""Make one profile of those of several ranks or runs.

The devices have the label of their run, such as "rank0 cuda:0". The tables that show makes of
it have the sums of hits and time, and of every other column the maximum and the minimum
over the devices.

Of the folder of a job it keeps what show tells of it, in a file that stays small with thousands of
ranks.

for example:
  pytorch-memlab merge -o all.memlab.json out.rank0.json out.rank1.json
  pytorch-memlab merge -o job.json job.memlab
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from ...errors import UsageError
from ..common_options import add_private
from ..jobs import is_job, prepared_merge
from ..notices import tell_usage_error
from ..output import is_profile
from ..parser import CommandParser

if TYPE_CHECKING:
    from ..._common.process.checked_file import CheckedFile
    from ...profiles.recorded import RecordedProfile


def add_arguments(parser: CommandParser) -> None:
    parser.usage = "%(prog)s [options] (FILE FILE ... | FOLDER) -o OUTPUT"
    add = parser.group("output")
    add("-o --output FILE", "write this .json file", required=True)
    add("--force", "overwrite it if it is there already", action="store_true")
    add_private(add, "the file")
    parser.add("FILE", "the saved profiles, or the folder of a job", dest="files", nargs="+")


def prepare(options: argparse.Namespace, _process: ExitStack, /) -> Callable[[], int]:
    from ..._common.process.checked_file import CheckedFile
    from ...profiles.merging import merged
    from ...profiles.privacy import without_private_facts
    from ...saved import profile_file

    if not is_profile(options.output):
        raise UsageError(f"a profile is a .json file, not {options.output}")
    if len(options.files) == 1 and is_job(options.files[0]):
        return prepared_merge(options)
    if len(options.files) < 2:
        raise UsageError("give two files or more to merge")
    if len(set(options.files)) < len(options.files):
        raise UsageError("a file is given twice")
    file = CheckedFile(options.output, keeps_older=not options.force)
    profile = merged({name: profile_file.read(name) for name in options.files})
    if options.private:
        profile = without_private_facts(profile)
    return partial(_write, profile, file, is_private=options.private)


def _write(profile: RecordedProfile, file: CheckedFile, *, is_private: bool) -> int:
    from ..._common.text.shared_paths import private_names
    from ...render.notes import in_words
    from ...saved import profile_file

    try:
        with private_names(is_private):
            name = file.write(profile_file.text_of(in_words(profile)))
    except UsageError as error:
        return tell_usage_error("merge", error)
    labels = ", ".join(run.label for run in profile.runs)
    print(f"merged profile of {labels} written to {name}", file=sys.stderr)
    return 0
