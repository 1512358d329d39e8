"""Ops that change how a storage is seen, and touch none of its elements."""

from __future__ import annotations

from ..registry import define

define("aten::_unsafe_view", "aten::lift", "aten::lift_fresh", touches_no_element=True)
define("aten::resize_", resizes=True)
define("aten::resize_as_", "aten::set_.*", resizes=True, takes_cpu_tensors=True)
define(
    "aten::_has_same_storage_numel",
    "aten::is_same_size",
    "aten::is_set_to",
    "aten::tensor_split.*",
    takes_cpu_tensors=True,
)
