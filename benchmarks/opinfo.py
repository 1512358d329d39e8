"""PyTorch's samples of its operators, on a simulated GPU beside a CPU: outputs and gradients.

``python -m benchmarks.opinfo`` runs all samples of ``op_db``; with names, those of some operators.
Both sides start from the same seed, and a simulated GPU draws as a CPU does. An operator whose
draws differ all the same, or whose results hold what was in memory, is compared by dtypes and
shapes.
"""

from __future__ import annotations

import enum
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_leaves, tree_map

from pytorch_memlab import simulate
from pytorch_memlab.errors import UnmodelledOpError, UnsupportedCUDACallError

SEED = 1234
Named = tuple[str, Any]
Results = list[Named] | Exception
_SINGLE = (torch.float32, torch.complex64)


UNINITIALIZED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)
"""Operators whose results hold whatever was in memory."""


EMPTY_ON_A_CPU = {"native_batch_norm": frozenset({"output 1", "output 2"})}
"""Results that CUDA's kernel makes with a size where a CPU's makes empty ones."""


ONLY_ON_A_CPU = frozenset({"sparse.mm.reduce"})
"""Operators without a kernel for CUDA, though their samples name dtypes for it."""

DRIVERS_OF_A_CPU = ("gelsy", "gelsd", "gelss")
"""Of ``linalg.lstsq``; CUDA refuses them."""

TAKES_INDICES_OF_A_CPU = frozenset({"tensor_split"})
"""Operators that refuse other arguments than the first on a GPU."""


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


def operators() -> list[Any]:
    """PyTorch's ``OpInfo`` of every operator."""
    # The import makes flags such as those of cuDNN read-only, for the rest of the process.
    with torch.backends.__allow_nonbracketed_mutation():
        from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def findings(op: Any) -> Iterator[Finding]:
    """Run all samples of one operator on a CPU and on a simulated GPU.

    Args:
        op: its ``OpInfo``.

    Yields:
        what came of each sample.
    """
    name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
    dtypes = op.supported_dtypes("cpu") & op.supported_dtypes("cuda")
    if not dtypes or name in ONLY_ON_A_CPU:
        return
    dtype = torch.float32 if torch.float32 in dtypes else min(dtypes, key=str)
    backward = dtype in op.supported_backward_dtypes("cpu") and op.supports_autograd
    torch.manual_seed(SEED)
    samples = [
        sample
        for sample in op.sample_inputs("cpu", dtype, requires_grad=backward)
        if sample.kwargs.get("driver") not in DRIVERS_OF_A_CPU
    ]
    expected = [_attempt(op, sample, "cpu") for sample in samples]
    with simulate("h100"):
        found = [_attempt(op, sample, "cuda") for sample in samples]
    for position, sides in enumerate(zip(samples, found, expected, strict=True)):
        yield Finding(name, position, *_verdict(op, *sides))


def _attempt(op: Any, sample: Any, device: str) -> Results:
    try:
        return _run(op, sample, device)
    except Exception as error:
        return error.with_traceback(None)


def _verdict(op: Any, sample: Any, found: Results, expected: Results) -> tuple[Verdict, str]:
    if isinstance(expected, Exception):
        return Verdict.NO_REFERENCE, _summary(expected)
    if isinstance(found, (UnsupportedCUDACallError, UnmodelledOpError)):
        return Verdict.REFUSED, _summary(found)
    if isinstance(found, Exception):
        return Verdict.RAISED, _summary(found)
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
    given = ((sample.input, *sample.args), sample.kwargs)
    args, kwargs = tree_map(lambda value: _placed(value, device), given)
    if op.name in TAKES_INDICES_OF_A_CPU:
        args = (args[0], *sample.args)
    inputs = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    if not inputs and not any(map(_is_device, tree_leaves(given))):
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


def _placed(value: Any, device: str) -> Any:
    """A sample's value for one side: tensors are leaves there, and a device is that side's."""
    if _is_device(value):
        return torch.device(device)
    if not isinstance(value, torch.Tensor):
        return value
    return _copy(value.detach(), device).requires_grad_(value.requires_grad)


def _is_device(value: Any) -> bool:
    return isinstance(value, torch.device) or (isinstance(value, str) and value == "cpu")


def _copy(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A copy of a tensor with the whole of its storage, which ops on strides may reach into."""
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        return tensor.clone().to(device)
    whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    size, stride, offset = tensor.size(), tensor.stride(), tensor.storage_offset()
    return whole.clone().to(device).as_strided(size, stride, offset)


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


def _summary(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


def report(ops: Iterable[Any]) -> Counter[Verdict]:
    """Run all samples of some operators, and print what is not equal.

    Args:
        ops: their ``OpInfo``.

    Returns:
        how many samples came to which verdict.
    """
    counts: Counter[Verdict] = Counter()
    for op in ops:
        for finding in findings(op):
            counts[finding.verdict] += 1
            if finding.detail:
                print(finding, flush=True)
    return counts


def main(names: list[str]) -> str | None:
    """Run the operators of some names, or all; a line for the exit code if any is wrong."""
    ops = operators()
    chosen = [op for op in ops if not names or op.name in names]
    missing = sorted({*names} - {op.name for op in ops})
    if missing:
        return f"no such operators in op_db: {', '.join(missing)}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counts = report(chosen)
    print(", ".join(f"{counts[verdict]:,} {verdict.value}" for verdict in Verdict))
    wrong = counts[Verdict.DIFFERS] + counts[Verdict.RAISED]
    return f"{wrong} of {counts.total():,} samples differ or raise" if wrong else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
