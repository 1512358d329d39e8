"""The texts of an experiment in a notebook."""

from __future__ import annotations

from ..profiles.cells import FinishedExperiment, MemoryState, growth


def gpu_label(index: int, count: int) -> str:
    """The name of a GPU: with its number only where there are several."""
    return "GPU" if count == 1 else f"GPU {index}"


def differences(before: MemoryState, after: MemoryState) -> dict[str, int]:
    """Bytes that are used more after than before: ``Gen``, and each GPU's label."""
    general, gpus = growth(before, after)
    return {"Gen": general} | {gpu_label(index, len(gpus)): size for index, size in gpus.items()}


def human_size(nbytes: float) -> str:
    """Bytes with a unit of 1024.

    >>> human_size(4.3 * 2**30), human_size(514), human_size(-3 * 2**20)
    ('4.3 GB', '514.0 B', '-3.0 MB')
    """
    for unit in ("", "K", "M", "G", "T"):
        if abs(nbytes) < 1024:
            return f"{nbytes:3.1f} {unit}B"
        nbytes /= 1024
    return f"{nbytes:.1f} PB"


def state_text(state: MemoryState) -> str:
    """The section on the current state, with two empty lines behind it when it is printed."""
    lines = [
        "*** Current state:",
        f"Gen RAM Free {human_size(state.free):>7s} | Proc size {human_size(state.resident)}",
    ]
    for gpu in state.gpus:
        used = gpu.total - gpu.free
        lines.append(
            f"{gpu_label(gpu.index, len(state.gpus))} RAM Free {human_size(gpu.free):>7s} "
            f"| Used {human_size(used)} | Util {100 * used / gpu.total:.1f}% "
            f"| Total {human_size(gpu.total)}"
        )
    return "\n".join([*lines, "", ""])


def start_text(backend: str, state: MemoryState) -> str:
    """The text at the start of an experiment."""
    sections = [f"*** Loading backend: {backend}", "*** Starting experiment...", state_text(state)]
    return "\n\n".join(sections)


def finish_text(outcome: FinishedExperiment) -> str:
    """The text at its end: variables, memory that it took and gave back, the state after it."""
    consumed = differences(outcome.start, outcome.end)
    reclaimed = differences(outcome.after, outcome.end)
    names = [
        ("Keeping the following local variables:", outcome.kept),
        ("No such variables, which were to be kept:", outcome.not_found),
        (
            f"Variables from before that cells assigned, now {outcome.reassigned_are}:",
            outcome.reassigned,
        ),
    ]
    sections = [
        "\n*** Finishing experiment...",
        f"*** Deleting the following local variables:\n{outcome.deleted}",
        *(f"*** {heading}\n{text}" for heading, text in names if text),
    ]
    if outcome.collected:
        sections.append(
            "*** Circular ref objects gc collected during the experiment:\n"
            f"cleared {outcome.collected} objects (no leakage)"
        )
    if outcome.uncollectable:
        sections.append(
            "*** Potential memory leaks during the experiment:\n"
            f"leaked garbage of {outcome.uncollectable} objects"
        )
    sections.append("*** RAM consumed during the experiment:")
    for label, nbytes in consumed.items():
        sections[-1] += f"\n{label}: {human_size(nbytes)}"
    sections.append("*** RAM reclaimed at the end of the experiment:")
    for label, nbytes in reclaimed.items():
        of = consumed.get(label, 0)
        # Memory that is reclaimed may be from before the experiment.
        share = f" ({100 * min(max(nbytes / of, 0.0), 1.0):.2f}%)" if of > 0 else ""
        sections[-1] += f"\n{label}: {human_size(nbytes)}{share}"
    if outcome.host_has_gpus:
        sections.append("*** Gen contains the tensors of the simulated GPUs")
    whole = int(outcome.seconds)
    clock = f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    sections += [f"*** Elapsed wallclock time:\n{clock}", state_text(outcome.after)]
    return "\n\n".join(sections)
