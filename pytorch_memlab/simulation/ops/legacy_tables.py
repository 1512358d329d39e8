"""The tables of families that are not in the registry yet."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, cast

import torch

from ..dry_run.data_dependent_ops import CALLED, COUNTS_ITSELF, INDEXING, RULES
from ..dry_run.meta_corrections import CORRECTIONS
from .cuda_only import CUDA_ONLY
from .data_dependence import MASKS, DataDependence
from .indexing import embeddings, indexing
from .indexing import nonzero as selection
from .indexing import scatter_reduce as scatters
from .memory_model import Entry, nothing
from .rnn import cells as rnn_cells
from .rnn import fused_cells_memory as fused_cells
from .rnn import packed_sequences, rnn
from .sorting import isin as membership
from .sorting import sorting
from .sorting import unique_memory as uniques

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .op_call import OpCall
    from .registry import Memory

ENTRIES: Final[Mapping[str, Entry]] = {
    **embeddings.ENTRIES,
    **fused_cells.ENTRIES,
    **indexing.ENTRIES,
    **membership.ENTRIES,
    **packed_sequences.ENTRIES,
    **scatters.ENTRIES,
    **selection.ENTRIES,
    **sorting.ENTRIES,
    **uniques.ENTRIES,
}
"""Entry of each op, by its name, with the overload's behind a dot where it has one."""

CHOICES: Final[Mapping[str, Callable[..., Any]]] = {
    **rnn.CHOICES,
    **rnn_cells.CHOICES,
}
"""By the op's name, with the overload's behind a dot where it has one.

Each is called as the op is, with the simulated GPU of its first tensor before the op's arguments,
above autograd and within every mode; ``NotImplemented`` leaves the op to PyTorch.
"""


_HOST_ARGUMENTS_ALLOWED = (
    "index",
    "_unsafe_index",
    "index_put",
    "index_put_",
    "_index_put_impl_",
    "_unsafe_index_put",
    "_pack_padded_sequence",
    "_pack_padded_sequence_backward",
)


def facts() -> dict[str, dict[str, Any]]:
    """Fields of ``OpDefinition`` by the name of each op that no family registers yet."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, entry in ENTRIES.items():
        found[name].update(memory=_memory(entry), provenance=entry.basis, source=entry.source)
    for name, only in CUDA_ONLY.items():
        found[name].update(reference=only.compute, meta=only.meta, cpu_outputs=only.on_host)
    for name, choice in CHOICES.items():
        found[name].update(cuda_dispatch=choice)
    for name in _HOST_ARGUMENTS_ALLOWED:
        for overload in _overloads(f"aten::{name}"):
            found[overload].update(takes_cpu_tensors=True)
    found["aten::_pack_padded_sequence"].update(cpu_outputs=frozenset({1}))
    for name, rule in RULES.items():
        called, assumption = CALLED.get(name, ("", ""))
        for overload in _overloads(name):
            found[overload].update(
                data_dependence=DataDependence(
                    called, assumption, cast("Any", rule), name in COUNTS_ITSELF
                )
            )
    for name in INDEXING:
        for overload in _overloads(name):
            found[overload].update(data_dependence=MASKS)
    for name, correct in CORRECTIONS.items():
        for overload in _overloads(name):
            found[overload].update(corrects_meta=correct)
    return found


def _overloads(name: str) -> list[str]:
    namespace, _, packet = name.partition("::")
    found = getattr(getattr(torch.ops, namespace), packet, None)
    if found is None:
        return [name]
    overloads = [getattr(found, one) for one in found.overloads()]
    plain = [one for one in overloads if not any(given.is_out for given in one._schema.arguments)]
    return [
        f"{name}.{one._schema.overload_name}" if one._schema.overload_name else name
        for one in plain
    ]


def _memory(entry: Entry) -> Memory | None:
    if entry.take is nothing and entry.prepare is None and entry.make is None:
        return None

    def memory(call: OpCall) -> None:
        if entry.prepare is not None:
            entry.prepare(call)
        if entry.make is not None:
            entry.make(call)
        call.alloc_outputs()
        entry.take(call)

    return memory
