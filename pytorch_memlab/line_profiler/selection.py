"""The registered functions that a caller means."""

from __future__ import annotations

from collections.abc import Mapping

from pytorch_memlab._common.listed import listed
from pytorch_memlab._common.quoted import quoted, shortened
from pytorch_memlab.errors import UsageError
from pytorch_memlab.records import FunctionInfo


def selected_code_ids(func: object, code_infos: Mapping[int, FunctionInfo]) -> tuple[int, ...]:
    """Keys of the functions asked for, in the order in which they were registered.

    ``func`` is as ``LineProfiler.display`` takes it.

    Raises:
        UsageError: something that is not registered; the message lists what is.
    """
    if func is None:
        return tuple(code_infos)
    asked = func if isinstance(func, (list, tuple, set, frozenset)) else [func]
    chosen = {code_id for item in asked for code_id in _matching(item, code_infos)}
    return tuple(code_id for code_id in code_infos if code_id in chosen)


def _matching(item: object, code_infos: Mapping[int, FunctionInfo]) -> list[int]:
    if isinstance(item, str):
        found = [key for key, info in code_infos.items() if info.qual_name == item]
        wanted = shortened(item)
    else:
        from pytorch_memlab.line_profiler.registration import resolve

        functions = resolve(item)
        found = [id(function.code) for function in functions if id(function.code) in code_infos]
        wanted = listed(function.qual_name for function in functions) or quoted(item)
    if found:
        return found
    registered = listed(info.qual_name for info in code_infos.values()) or "none"
    raise UsageError(f"{wanted} is not registered with this profiler; registered: {registered}")
