"""PyTorch's samples of its operators, on a simulated GPU beside a CPU: outputs and gradients.

``python -m benchmarks.opinfo`` runs all samples of ``op_db``; with names, those of some operators.
With ``--memory`` each sample runs on a simulated GPU with and without values, and what both ask
the allocator for is compared (``opinfo_memory.py``). Otherwise both sides start from the same seed,
and a simulated GPU draws as a CPU does. An operator whose draws differ all the same, or whose
results hold what was in memory, is compared by dtypes and shapes.
"""

from __future__ import annotations

import argparse
import enum
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_leaves

from benchmarks import opinfo_memory
from benchmarks.opinfo_samples import (
    REFUSALS,
    SEED,
    dtypes_of,
    is_device,
    main_dtype,
    name_of,
    operators,
    placed_arguments,
    samples_of,
    summary,
)
from pytorch_memlab import simulate

Named = tuple[str, Any]
Results = list[Named] | Exception
_SINGLE = (torch.float32, torch.complex64)


DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "complex64", "complex128"),
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
)
"""Names of dtypes that samples are asked for."""


UNINITIALIZED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)
"""Operators whose results hold whatever was in memory."""


EMPTY_ON_A_CPU = dict.fromkeys(
    ("native_batch_norm", "_native_batch_norm_legit"), frozenset({"output 1", "output 2"})
)
"""Results that CUDA's kernel makes with a size where a CPU's makes empty ones."""


class Verdict(enum.Enum):
    """The outcome of one sample."""

    EQUAL = "equal"
    SAME_SHAPES = "random, of equal shapes"
    DIFFERS = "differ"
    REFUSED = "refused by name"
    RAISED = "raised"
    NO_REFERENCE = "without a CPU's result"


@dataclass(frozen=True, slots=True)
class Finding:
    """One sample on both sides.

    Args:
        name: of the operator, with its variant.
        position: of the sample among the operator's.
        verdict: what came of it.
        detail: what differs, or the error; empty when there is nothing to say.
    """

    name: str
    position: int
    verdict: Verdict
    detail: str = ""

    def __str__(self) -> str:
        """One line of the report."""
        return f"{self.name}, sample {self.position}: {self.verdict.value}: {self.detail}"


def findings(op: Any) -> Iterator[Finding]:
    """Run all samples of one operator on a CPU and on a simulated GPU.

    Args:
        op: its ``OpInfo``.

    Yields:
        what came of each sample.
    """
    dtype = main_dtype(op)
    if dtype is None:
        return
    samples = samples_of(op, dtype)
    expected = [_attempt(op, sample, "cpu") for sample in samples]
    with simulate("h100"):
        found = [_attempt(op, sample, "cuda") for sample in samples]
    for position, sides in enumerate(zip(samples, found, expected, strict=True)):
        yield Finding(name_of(op), position, *_verdict(op, *sides))


def _attempt(op: Any, sample: Any, device: str) -> Results:
    try:
        return _run(op, sample, device)
    except Exception as error:
        return error.with_traceback(None)


def _verdict(op: Any, sample: Any, found: Results, expected: Results) -> tuple[Verdict, str]:
    if isinstance(expected, Exception):
        return Verdict.NO_REFERENCE, summary(expected)
    if isinstance(found, REFUSALS):
        return Verdict.REFUSED, summary(found)
    if isinstance(found, Exception):
        return Verdict.RAISED, summary(found)
    skipped = EMPTY_ON_A_CPU.get(op.name, frozenset())
    expected = [(name, one) for name, one in expected if name not in skipped or one.numel()]
    found = [(name, one) for name, one in found if name not in skipped or name in dict(expected)]
    difference = _difference(found, expected)
    if not difference:
        return Verdict.EQUAL, ""
    is_random = op.name in UNINITIALIZED or _draws(op, sample, expected)
    if is_random and not _difference(found, expected, values=False):
        return Verdict.SAME_SHAPES, ""
    return Verdict.DIFFERS, difference


def _draws(op: Any, sample: Any, expected: list[Named]) -> bool:
    """True if results depend on the seed; some operators of the samples set one themselves."""
    seed = torch.manual_seed
    with patch.object(torch, "manual_seed", lambda given: seed(given + 1)):
        return bool(_difference(_run(op, sample, "cpu"), expected))


def _run(op: Any, sample: Any, device: str) -> list[Named]:
    """Outputs of a call, then the gradients of its inputs, each with its name and on the CPU."""
    args, kwargs = placed_arguments(op, sample, device)
    leaves = tree_leaves((args, kwargs))
    inputs = [one for one in leaves if isinstance(one, torch.Tensor)]
    if not inputs and not any(map(is_device, tree_leaves((sample.args, sample.kwargs)))):
        device = "cpu"  # a factory that is told no device
    torch.manual_seed(SEED)
    result = op(*args, **kwargs)
    named = [(f"output {i}", _read(one, device)) for i, one in enumerate(tree_leaves(result))]
    outputs = tree_leaves(sample.output_process_fn_grad(result))
    roots = [one for one in outputs if isinstance(one, torch.Tensor) and one.requires_grad]
    leaves = [one for one in inputs if one.is_leaf and one.requires_grad]
    if roots and leaves:
        torch.autograd.backward(roots, [_weights(root) for root in roots])
        named += [(f"gradient {i}", _read(one.grad, device)) for i, one in enumerate(leaves)]
    return named


def _weights(root: torch.Tensor) -> torch.Tensor:
    """The gradient of an output, of another value at each element."""
    count = torch.arange(1, root.numel() + 1, device=root.device).remainder_(7)
    return count.reshape(root.shape).to(root.dtype).add_(1).div_(8)


def _read(value: Any, device: str) -> Any:
    """A result to compare: on the CPU, strided; a tensor elsewhere than its side's is named."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.device.type != device:
        return f"a tensor on {value.device}"
    with torch.no_grad():
        value = value.detach()
        value = value if value.layout is torch.strided else value.to_dense()
        return value.cpu().resolve_conj().resolve_neg()


def _difference(found: list[Named], expected: list[Named], values: bool = True) -> str:
    """The first difference, in words; empty if there is none."""
    if len(found) != len(expected):
        return f"{len(found)} results instead of {len(expected)}"
    for (name, one), (_, other) in zip(found, expected, strict=True):
        words = _words(one, other, values)
        if words:
            return f"{name}: {words}"
    return ""


def _words(one: Any, other: Any, values: bool) -> str:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        same = type(one) is type(other) and (one == other or not values or one != one)
        return "" if same else f"{one} instead of {other}"
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return f"{one.dtype} {list(one.shape)} instead of {other.dtype} {list(other.shape)}"
    if not values:
        return ""
    # Sums in another order differ in single precision; a wrong formula differs by more.
    rtol, atol = (1e-3, 1e-4) if other.dtype in _SINGLE else (None, None)
    try:
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())
    return ""


def report(findings: Iterable[Finding | opinfo_memory.Finding]) -> Counter[enum.Enum]:
    """Print what is not equal.

    Args:
        findings: of samples, which run as they are asked for.

    Returns:
        how many samples came to which verdict.
    """
    counts: Counter[enum.Enum] = Counter()
    for finding in findings:
        counts[finding.verdict] += 1
        if finding.detail:
            print(finding, flush=True)
    return counts


def main(arguments: list[str]) -> str | None:
    """Run the command; a line for the exit code if a sample is wrong."""
    options = _parser().parse_args(arguments)
    ops = operators()
    names = options.operator
    chosen = [op for op in ops if not names or any(fnmatchcase(op.name, name) for name in names)]
    missing = [name for name in names if not any(fnmatchcase(op.name, name) for op in ops)]
    if missing:
        return f"no such operators in op_db: {', '.join(sorted(missing))}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if options.memory:
            counts = report(_memory_findings(chosen, options.dtype))
        else:
            counts = report(finding for op in chosen for finding in findings(op))
    verdicts = opinfo_memory.Verdict if options.memory else Verdict
    print(", ".join(f"{counts[verdict]:,} {verdict.value}" for verdict in verdicts))
    wrong = counts[verdicts.DIFFERS] + counts[verdicts.RAISED]
    return f"{wrong} of {counts.total():,} samples differ or raise" if wrong else None


def _memory_findings(ops: Iterable[Any], dtypes: list[str]) -> Iterator[opinfo_memory.Finding]:
    for op in ops:
        taken = dtypes_of(op)
        main = main_dtype(op)
        chosen = [getattr(torch, name) for name in dtypes] or [main]
        for dtype in chosen:
            if dtype in taken:
                yield from opinfo_memory.findings(op, dtype)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.opinfo",
        description="Run PyTorch's samples of its operators, and compare the results with a CPU's.",
        epilog="The exit code is 1 if a sample differs or raises, 0 otherwise.",
    )
    parser.add_argument(
        "operator", nargs="*", help="name or pattern (linalg.*) of operators to run, instead of all"
    )
    parser.add_argument(
        "--memory",
        action="store_true",
        help="compare the requests to the allocator with and without values instead",
    )
    parser.add_argument(
        "--dtype",
        action="append",
        default=[],
        choices=DTYPES,
        metavar="NAME",
        help=f"with --memory: of samples, not float32; may be repeated: {', '.join(DTYPES)}",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
