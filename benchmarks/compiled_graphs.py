"""Compiled graphs on a simulated GPU, event by event, beside the text of Inductor's wrapper.

``python -m benchmarks.compiled_graphs`` runs ``compiled_programs.py``, and a sample of each
operator that PyTorch has samples of, forward and backward; with names, those only. What the
allocator was asked for must be what the text says, line by line (``wrapper_text.py``).
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from benchmarks.compiled_programs import PROGRAMS
from benchmarks.opinfo_samples import (
    main_dtype,
    name_of,
    operators,
    placed_arguments,
    samples_of,
    summary,
)
from benchmarks.wrapper_text import recorded_graphs
from pytorch_memlab import simulate


@dataclass(slots=True)
class Finding:
    """The graphs of one program beside their texts.

    Args:
        name: of the program.
        texts: of the wrappers that ran.
        events: how many requests there were to the allocator.
        differences: between the texts and the requests, in words.
        eager: why something ran eagerly; empty if nothing did.
    """

    name: str
    texts: set[str] = field(default_factory=set)
    events: int = 0
    differences: list[str] = field(default_factory=list)
    eager: str = ""


def finding(name: str, program: Callable[[], object]) -> Finding:
    """Compile and run a program on a simulated GPU, and compare its graphs with their text."""
    result = Finding(name)
    try:
        with (
            warnings.catch_warnings(record=True) as caught,
            simulate("h100", compute=False),
            recorded_graphs() as graphs,
        ):
            warnings.simplefilter("always")
            program()
    except Exception as error:
        result.eager = summary(error)
        return result
    finally:
        torch._dynamo.reset()
    for graph in graphs:
        result.texts.add(graph.text)
        result.events += graph.length
        result.differences += graph.differences()
    told = (str(warning.message) for warning in caught)
    result.eager = next((text for text in told if "torch.compile runs eagerly" in text), "")
    return result


def samples() -> Iterator[tuple[str, Callable[[], None]]]:
    """A program for each operator: a sample of it, forward and backward."""
    for op in operators():
        dtype = main_dtype(op)
        if dtype is not None:
            yield name_of(op), partial(_run_sample, op, dtype)


def _run_sample(op: Any, dtype: torch.dtype) -> None:
    of_op = samples_of(op, dtype)
    if not of_op:
        return
    args, kwargs = placed_arguments(op, of_op[len(of_op) // 2], "cuda")
    result = torch.compile(lambda *args, **kwargs: op.op(*args, **kwargs))(*args, **kwargs)
    roots = [leaf for leaf in tree_leaves(result) if _is_root(leaf)]
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])


def _is_root(leaf: object) -> bool:
    """True for a tensor to begin a backward pass at: there is no sparse gradient of ones."""
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.layout is torch.strided


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what differs, and how many graphs were compared."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a program, or an operator")
    names = parser.parse_args(arguments).names
    findings = []
    for name, program in (*PROGRAMS.items(), *samples()):
        if names and name not in names:
            continue
        result = finding(name, program)
        findings.append(result)
        for line in (result.eager, *result.differences):
            if line:
                print(f"{name}: {line}", flush=True)
    texts = {text for result in findings for text in result.texts}
    events = sum(result.events for result in findings)
    differ = sum(map(bool, (result.differences for result in findings)))
    print(
        f"{len(texts)} graphs of {len(findings)} programs, {events} requests to the allocator; "
        f"{differ} programs differ from their text, {sum(bool(one.eager) for one in findings)} "
        "do not compile"
    )
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
