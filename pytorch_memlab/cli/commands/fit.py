"""Show on which GPUs a program fits, without any of them.

The program runs unmodified and without values, as run --dry-run does it, and ends once the
peak of its training steps repeats. GPUs on which the same happens share a run; its allocations
are replayed with the memory of each. What the program prints goes to files, which are named
below the table.

A ? after a peak says that not all memory is counted, or that the program read values that
decide shapes; a ~ that an estimate is included. The notes at the end say what.

for example:
  pytorch-memlab fit train.py --batch-size 8
  pytorch-memlab fit --gpu rtx4090,a100,h100 train.py -- --batch-size 8
  pytorch-memlab fit --gpu 24GiB --steps 5 -m package.train
  pytorch-memlab fit --try --gpu rtx4090 train.py
  pytorch-memlab fit --vary "--batch-size=1:512" -o curve.svg train.py
  pytorch-memlab fit --ranks all --mesh pp=4,dp=8,tp=2 --gpu h100 train.py
  pytorch-memlab fit --mesh ep=8 --expert-load 1.0,2.5 --gpu h100 train.py

exit codes:
  0  the program fits on one of the GPUs at least, or with one of the remedies
  1  the picture could not be written
  2  there is no verdict: the command line cannot be carried out, the program
     failed or used no GPU, or the option that varies changes nothing
  3  the program fits on none of the GPUs
  4  the program fits so far: what follows its loop was not reached, its memory
     grows with every step, or its peak does not repeat; or it fits perhaps:
     memory that is not counted may have no room
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from ..._common.process.standard_output import print_to_stdout
from ...advice.catalogue import causes_to_try, chosen_with_causes, named_changes, nearest
from ...errors import MemlabError, UsageError
from ...render.output_format import SearchResults
from ...simulation.inspect import DEFAULT_GPU
from ..common_options import (
    add_allow_writes,
    add_assume,
    add_list,
    add_memory_overhead,
    add_program,
    assumptions,
    memory_overhead,
    number_from,
    number_of_gpus,
    simulated_gpus,
)
from ..ending_signals import signals_as_interrupts
from ..exit_codes import DOES_NOT_FIT, FAILED, FITS_SO_FAR, INTERRUPTED, NO_VERDICT
from ..notices import (
    hint_on,
    tell,
    tell_assumed_values,
    tell_in_terminal,
    tell_options_after_program,
    tell_usage_error,
)
from ..output import OutputFile
from ..parser import CommandParser

_GPUS_OF_NODE = 8

if TYPE_CHECKING:
    from ...advice.around_program import AroundProgram
    from ...fitting.cluster import Cluster
    from ...fitting.mesh import Mesh
    from ...fitting.target import ProgramTarget
    from ...fitting.trial import Settings
    from ...fitting.variable import Variable
    from ...fitting.verdict import Verdict
    from ...simulation.inspect import GPU


def add_arguments(parser: CommandParser) -> None:
    parser.usage = "%(prog)s [options] (SCRIPT | -m MODULE) [--] [ARGS ...]"
    parser.hint_on_unknown = "; options of the script go after it: fit SCRIPT ARGS"
    parser.optional_values["--try"] = _are_remedies
    parser.optional_values["--vary"] = bool  # the next word, also if it begins with a dash
    add_program(parser.group("what to run"))
    parser.group("how long")(
        "--steps N",
        "end the program after N optimizer steps (default: when the peak of a step"
        " repeats; a program without an optimizer runs to its end)",
        type=number_from(1, "optimizer steps"),
    )
    add_allow_writes(parser.group("files"))
    add = parser.group("GPUs")
    add_list(
        add,
        "--gpu LIST",
        "try these GPUs: names (t4, rtx4090, a100, h100), sizes (24GiB), or TOML files"
        " with name, memory, compute_capability and multiprocessors. Separated by commas,"
        " repeatable (default: all GPUs that have a name)",
    )
    text = "number of GPUs that the program has, all alike (default: 1; with --ranks, those of"
    add("--num-gpus N", text + " a node, 8 at most)", type=number_of_gpus)
    add_memory_overhead(add, "GPU")
    add_assume(add)
    _add_remedy_options(parser)
    _add_rank_options(parser)
    parser.group("where")(
        "--cluster ADDRESS",
        "run on a cluster: dask://HOST:PORT of a scheduler of Dask, or ray://HOST:PORT of a client"
        " server of Ray (ray://auto: the cluster on this machine). The program is in a folder that"
        " its machines have (default: processes here, one for each processor)",
    )
    _add_search_options(parser)


def _add_remedy_options(parser: CommandParser) -> None:
    add = parser.group("remedies")
    names: dict[bool, list[str]] = {True: [], False: []}
    for change in named_changes().values():
        names[change.is_by_default].append(
            f"{change.name}[={change.unit}]" if change.unit else change.name
        )
    causes = ", ".join(causes_to_try())
    add(
        "--try LIST",
        "run the program with each of these remedies too, on one GPU, and show what it saves,"
        " what it changes and how it is written; without a list, the edits for what is wrong with"
        " the program, and all of them: "
        + ", ".join(names[True])
        + f"; only where it is named: {', '.join(names[False])}"
        + f"; the edit of a cause alone: {causes}"
        + f". --gpu names the GPU (default: {DEFAULT_GPU})",
        dest="remedies",
    )
    add(
        "--budget SIZE",
        "the memory that the program and the CUDA context may take, such as 20GiB"
        " (default: that of the GPU). If the program needs more, fit looks for the fewest"
        " blocks whose activation checkpointing makes it fit; without --try, all remedies are"
        " tried",
    )


def _add_rank_options(parser: CommandParser) -> None:
    add = parser.group("jobs of many ranks")
    add(
        "--ranks LIST",
        "run the ranks of a job side by side, and show what each needs: all runs one of each kind"
        " that differs, such as every stage of a pipeline, and the first and the last rank of other"
        " dimensions; or numbers (0,3,8-11). --gpu names the GPU"
        f" (default: {DEFAULT_GPU})",
    )
    add(
        "--mesh NAME=N,...",
        "the dimensions of the ranks, as init_device_mesh has them, the outermost first: pp=4,dp=8,"
        "tp=2. Along pp every rank runs (default: WORLD_SIZE ranks, all of which run)",
    )
    add(
        "--expert-load LIST",
        "run the ranks with these loads of their experts too, for a mixture of experts: 1.0,2.5 is"
        " an even share of all tokens, and 2.5 times as many (default: even)",
    )


def _add_search_options(parser: CommandParser) -> None:
    add = parser.group("search")
    add(
        "--vary NAME=VALUES",
        'find the largest value that fits each GPU: of an option of the program ("--batch-size'
        '=1:512"), an environment variable (BATCH=1:512) or a value of a file (config.yaml:train.'
        "batch_size=1:512; YAML, JSON, TOML or Python). VALUES are a range, a range with a step"
        " (8:512:8) or a list (1,2,4). Repeatable: the first range is searched for each"
        " combination of the others. Of another range, the first value, its"
        " doublings (128, 256, 512) and the last one are taken",
        action="append",
    )
    add("-o --output FILE", "with --vary, draw the curve to a file too: .svg or .png")
    add("--private", "leave the program's arguments out of that file", action="store_true")


def _are_remedies(word: str) -> bool:
    """True if the word after ``--try`` is a list of remedies, not the script."""
    if word.startswith("-") or word.endswith(".py") or os.path.exists(word):
        return False
    return "," in word or "=" in word or bool(nearest(word))


def prepare(options: argparse.Namespace, process: ExitStack, /) -> Callable[[], int]:
    from ...fitting.comparison import named_gpus

    gpus = named_gpus(options.gpu)
    settings = _settings(options)
    for _, gpu in gpus:
        settings.taken(gpu)
    target = _target(options)
    source = target.check()
    parser = CommandParser("pytorch-memlab fit", "")
    add_arguments(parser)
    tell_options_after_program(parser, options, source)
    script = "" if options.is_module else options.script
    cluster = None
    if options.cluster is not None:
        from ...fitting.cluster import on_cluster

        cluster = process.enter_context(on_cluster(options.cluster))
    return partial(_show, _question(options, gpus, settings, target, cluster), settings, script)


def _question(
    options: argparse.Namespace,
    gpus: Sequence[tuple[str, GPU]],
    settings: Settings,
    target: ProgramTarget,
    cluster: Cluster | None,
) -> Callable[[Settings], _Found]:
    """The runs that answer what the options ask for: of ranks, values, remedies, or GPUs."""
    is_tried = options.remedies is not None or options.budget is not None
    asked = (options.ranks, options.mesh, options.expert_load)
    if asked != (None, None, None):
        if options.vary or is_tried:
            raise UsageError("--ranks is a question by itself: give --vary or --try without it")
        if options.output is not None or options.private:
            raise UsageError("--output draws the curve of --vary: give that too")
        return _ranks_of(options, gpus, target, cluster)
    if options.vary:
        if options.private and options.output is None:
            raise UsageError("--private is for the picture of --output: give that too")
        if is_tried:
            raise UsageError("--vary and --try are two questions: ask one after the other")
        return _search_of(options, gpus, target)
    if options.output is not None:
        raise UsageError("--output draws the curve of --vary: give that too")
    if options.private:
        raise UsageError("--private is for the picture of --output: give that too")
    if is_tried:
        one_gpu = gpus if options.gpu else ()
        return _trial_of_remedies(options, one_gpu, settings, target)
    return partial(_fit, target, gpus)


def _settings(options: argparse.Namespace) -> Settings:
    from ...fitting.trial import Settings

    context, others = memory_overhead(options)
    return Settings(
        steps=options.steps,
        num_gpus=simulated_gpus(options),
        context=context,
        others=others,
        allow_writes=options.allow_writes,
        assume=assumptions(options),
    )


def _target(options: argparse.Namespace) -> ProgramTarget:
    from ...fitting.target import ProgramTarget

    if options.script == "-":
        raise UsageError("fit runs a program several times: give the file of a script, not -")
    arguments = options.arguments
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    return ProgramTarget(options.script, tuple(arguments), options.is_module)


@dataclass(frozen=True, slots=True)
class _Found:
    """The findings of all runs, or of those before Ctrl-C."""

    text: str
    exit_code: int
    error: str = ""  # the traceback of the program; empty without one
    interrupted: str = ""  # what is said of Ctrl-C; empty if it was not pressed
    draw: Callable[[], bool] = lambda: True  # False if the picture cannot be written
    assumes_values: bool = False  # True if the program read values before the error


def _show(find: Callable[[Settings], _Found], settings: Settings, script: str) -> int:
    """Run a program with a folder for what it prints, and show what is found; the exit code."""
    with signals_as_interrupts():
        return _find_and_show(find, settings, script)


def _find_and_show(find: Callable[[Settings], _Found], settings: Settings, script: str) -> int:
    folder = tempfile.mkdtemp(prefix="pytorch-memlab-fit-")
    try:
        answer = find(replace(settings, output=folder))
    except MemlabError as error:
        code = tell_usage_error("fit", error)
        _tell_output(folder)
        return code
    print_to_stdout(answer.text)
    _tell_output(folder)
    is_drawn = answer.draw()
    if answer.error:
        print(f"\n{answer.error}", file=sys.stderr, end="")
        hint = hint_on(answer.error, "fit", script)
        if hint:
            tell(hint)
        if answer.assumes_values:
            tell_assumed_values("pytorch-memlab run computes them")
    if answer.interrupted:
        tell(answer.interrupted)
        return INTERRUPTED
    return answer.exit_code or (0 if is_drawn else FAILED)


def _tell_output(folder: str) -> None:
    """Say where the output of the program is; files without any are removed."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if not os.path.getsize(path):
            os.remove(path)
    if os.listdir(folder):
        tell(f"what the program printed is in {folder}")
    else:
        os.rmdir(folder)


def _fit(target: ProgramTarget, gpus: Sequence[tuple[str, GPU]], settings: Settings) -> _Found:
    from ...fitting.comparison import compare_gpus, fit_report
    from ...records import OF_VALUES
    from ...render import fit

    judged: list[tuple[int, Verdict]] = []
    interrupted = ""
    try:
        with closing(compare_gpus(target, gpus, settings)) as verdicts:
            for verdict in verdicts:
                judged.append(verdict)
                if len(judged) < len(gpus):  # the table says so of the last one
                    tell_in_terminal(f"{len(judged)} of {len(gpus)} GPUs")
    except KeyboardInterrupt:
        interrupted = f"interrupted: {len(judged)} of {len(gpus)} GPUs are known"
    report = fit_report(target, gpus, judged, settings)
    is_known = any(verdict.fits is False for verdict in report.verdicts)
    exit_code = DOES_NOT_FIT if is_known else NO_VERDICT
    if report.fitting:
        exit_code = _exit_code(report.fitting)
    if report.uses_no_gpu:
        exit_code = NO_VERDICT
    kinds = {approximation.kind for approximation in report.approximations}
    return _Found(
        fit.text(report, names_error=False),
        exit_code,
        report.error,
        interrupted,
        assumes_values=bool(kinds & OF_VALUES),
    )


def _trial_of_remedies(
    options: argparse.Namespace,
    gpus: Sequence[tuple[str, GPU]],
    settings: Settings,
    target: ProgramTarget,
) -> Callable[[Settings], _Found]:
    """The trial of the remedies that were asked for, with its options checked."""
    from ...simulation.inspect import find_gpu, read_size

    if len(gpus) > 1:
        raise UsageError("--try is for one GPU: name one with --gpu")
    name, gpu = gpus[0] if gpus else (DEFAULT_GPU, find_gpu(DEFAULT_GPU))
    if options.budget is not None:
        gpu = gpu.with_memory(read_size("--budget", options.budget))
        settings.taken(gpu)
    names = [name for name in (options.remedies or "").split(",") if name.strip()]
    remedies, causes = chosen_with_causes(names)
    return partial(_try, target, name, gpu, remedies, causes if names else None)


def _try(
    target: ProgramTarget,
    name: str,
    gpu: GPU,
    remedies: Sequence[AroundProgram],
    causes: Sequence[str] | None,
    settings: Settings,
) -> _Found:
    from ...advice.tried import OneGPU, try_remedies
    from ...render.remedies import text

    runs = 0

    def ended() -> None:
        nonlocal runs
        runs += 1
        tell_in_terminal(f"{runs} runs")

    try:
        one_gpu = OneGPU(target, name, gpu, settings)
        remedies_tried = try_remedies(one_gpu, remedies, ended, causes)
    except KeyboardInterrupt:
        return _Found("", INTERRUPTED, "", f"interrupted after {runs} runs of the program")
    if remedies_tried.unchanged.fits is None:
        return _Found(text(remedies_tried), NO_VERDICT, remedies_tried.unchanged.trial.error)
    verdicts = [remedies_tried.unchanged, *(remedy.verdict for remedy in remedies_tried.tried)]
    return _Found(text(remedies_tried), _exit_code(verdicts))


def _ranks_of(
    options: argparse.Namespace,
    gpus: Sequence[tuple[str, GPU]],
    target: ProgramTarget,
    cluster: Cluster | None,
) -> Callable[[Settings], _Found]:
    """The runs of the ranks of a job, with the options checked."""
    import torch.distributed

    from ...fitting.expert_load import read_loads
    from ...fitting.mesh import read_mesh, read_ranks
    from ...simulation.inspect import find_gpu

    if not torch.distributed.is_available():
        raise UsageError("--ranks is for a torch with torch.distributed, which this one has not")
    if options.gpu and len(gpus) > 1:
        raise UsageError("--ranks is for one GPU: name one with --gpu")
    name, gpu = gpus[0] if options.gpu else (DEFAULT_GPU, find_gpu(DEFAULT_GPU))
    loads = () if options.expert_load is None else read_loads(options.expert_load)
    asked = "--ranks" if options.ranks is not None or not loads else "--expert-load"
    mesh = read_mesh(options.mesh, os.environ.get("WORLD_SIZE"), asked)
    ranks = read_ranks(options.ranks or "all", mesh)
    per_node = options.num_gpus or min(mesh.world_size, _GPUS_OF_NODE)
    return partial(_run_ranks, target, name, gpu, mesh, ranks, loads, per_node, cluster)


def _run_ranks(
    target: ProgramTarget,
    name: str,
    gpu: GPU,
    mesh: Mesh,
    ranks: tuple[int, ...] | None,
    loads: tuple[float, ...],
    per_node: int,
    cluster: Cluster | None,
    settings: Settings,
) -> _Found:
    from ...fitting.rank_classes import RankSearch
    from ...records import OF_VALUES
    from ...render import fit_ranks

    settings = replace(settings, num_gpus=per_node)
    search = RankSearch(
        target, name, gpu, mesh, settings, only=ranks, loads=loads, ended=_tell_ranks
    )
    if cluster is not None:
        search.check_side_by_side = cluster.check_side_by_side
    try:
        search.run()
    except KeyboardInterrupt:
        runs = f"interrupted after {search.runs} runs of ranks"
        return _Found("", INTERRUPTED, "", runs)
    text = fit_ranks.text(search, names_error=False)
    if search.failed is not None:
        trial = search.failed.verdict.trial
        assumes = any(approximation.kind in OF_VALUES for approximation in trial.approximations)
        return _Found(text, NO_VERDICT, trial.error, assumes_values=assumes)
    if search.no_loads or not any(verdict.reserved_peak for verdict in search.verdicts):
        return _Found(text, NO_VERDICT)
    codes = {_exit_code([verdict]) for verdict in search.verdicts}
    worst = next(code for code in (NO_VERDICT, DOES_NOT_FIT, FITS_SO_FAR, 0) if code in codes)
    return _Found(text, worst)


def _tell_ranks(runs: int) -> None:
    tell_in_terminal(f"{runs} runs of ranks")


def _exit_code(verdicts: Iterable[Verdict | None]) -> int:
    """Of the best of some verdicts."""
    fitting = [verdict for verdict in verdicts if verdict is not None and verdict.fits]
    if not fitting:
        return DOES_NOT_FIT
    if not all(verdict.is_so_far or verdict.may_not_fit for verdict in fitting):
        return 0
    return NO_VERDICT if any(verdict.trial.stopped for verdict in fitting) else FITS_SO_FAR


def _search_of(
    options: argparse.Namespace, gpus: Sequence[tuple[str, GPU]], target: ProgramTarget
) -> Callable[[Settings], _Found]:
    """The search of the largest values, with its options checked."""
    from ...fitting.grid import check_variables
    from ...fitting.variable import read_variable

    variables = [read_variable(text, target.arguments) for text in options.vary]
    check_variables(variables)
    picture = None
    if options.output is not None:
        picture = OutputFile(options.output, SearchResults)
    return partial(_search, target, gpus, variables, picture, is_private=options.private)


def _search(
    target: ProgramTarget,
    gpus: Sequence[tuple[str, GPU]],
    variables: Sequence[Variable],
    picture: OutputFile[SearchResults] | None,
    settings: Settings,
    *,
    is_private: bool,
) -> _Found:
    from ...fitting.grid import GridSearch
    from ...render import curve

    search = GridSearch(target.name, gpus, variables, settings)
    interrupted = ""
    try:
        search.run(target, _tell_progress)
    except KeyboardInterrupt:
        if not search.trials:
            return _Found("", INTERRUPTED, "", "interrupted before a run of the program ended")
        interrupted = "interrupted: values with >= fit, and larger ones may fit too"
    exit_code = _exit_code(answer.best for answer in search.answers)
    if search.problem is not None or search.has_no_effect:
        exit_code = NO_VERDICT
    answer = _Found(curve.text(search, names_error=False), exit_code, search.error, interrupted)
    if picture is None or search.problem is not None:
        return answer
    if is_private:
        search.program = os.path.basename(target.script)
    return replace(answer, draw=partial(picture.write, SearchResults(search), "picture"))


def _tell_progress(runs: int, latest: str) -> None:
    tell_in_terminal(f"run {runs}: {latest}")
