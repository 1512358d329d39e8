"""The registry of ops: each op once, ops that exist, and ops that write to a given tensor."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path
from statistics import median

import pytest
import torch
import torch.distributed.fsdp
import torchgen

import pytorch_memlab
from pytorch_memlab.simulation.machine.torch_release import RELEASE
from pytorch_memlab.simulation.ops.core import registry
from pytorch_memlab.simulation.ops.core.op_info import ops_without_workspace, same_device_ops
from pytorch_memlab.simulation.ops.core.registry import (
    define,
    definition_of,
    definitions,
    provenances,
)


def test_a_second_registration_of_an_op_is_an_error():
    home = "pytorch_memlab.simulation.ops.sorting.sorting"
    assert definitions()["aten::topk"].home == home
    with pytest.raises(ValueError, match=f"aten::topk is registered in {home} and in {__name__}"):
        define("aten::topk")


def test_after_an_interrupt_all_ops_are_registered(monkeypatch):
    before = dict(definitions())
    registry.definitions.cache_clear()
    interrupted = "pytorch_memlab.simulation.ops.norms.group_norm"
    monkeypatch.delitem(sys.modules, interrupted)
    for name in [name for name, known in before.items() if known.home == interrupted]:
        monkeypatch.delitem(registry._definitions, name)

    def interrupted_import(name):
        module = importlib.import_module(name)
        if name == interrupted:
            del sys.modules[name]
            raise KeyboardInterrupt
        return module

    with monkeypatch.context() as patches:
        patches.setattr(registry, "import_module", interrupted_import)
        with pytest.raises(KeyboardInterrupt):
            definitions()
    assert "aten::native_group_norm" not in registry._definitions
    assert set(definitions()) == set(before)


PACKAGE = Path(pytorch_memlab.__file__).parent
LISTS = ("ops/core/no_workspace.txt", "autocast/lists.toml", "dispatch/gradient_accumulation.py")
"""Tables of PyTorch's own rules, by the names of ops without ``aten::``."""


def strings_in(path):
    """Strings of a module that are no docstrings."""
    tree = ast.parse(path.read_text())
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {
        one.value for one in constants if isinstance(one.value, str) and id(one) not in statements
    }


def listed_in(path, name):
    return re.search(rf'^{name}$|"{name}(\.\w+)?"|aten\.{name}\.', path.read_text(), re.MULTILINE)


def test_one_place_knows_an_op():
    simulation = PACKAGE / "simulation"
    strings = {path: strings_in(path) for path in simulation.rglob("*.py")}
    places = {}
    for name, known in definitions().items():
        home = PACKAGE.parent / (known.home.replace(".", "/") + ".py")
        plain = name.partition("::")[2].partition(".")[0]
        places[name] = {
            home,
            *(path for path, values in strings.items() if name in values),
            *(simulation / one for one in LISTS if listed_in(simulation / one, plain)),
        }
    counts = {name: len(found) for name, found in places.items()}
    assert median(counts.values()) == 1
    assert {name: count for name, count in counts.items() if count > 2} == {}


def test_an_op_with_a_memory_model_is_not_listed_as_without_workspace():
    modelled = {name for name, known in definitions().items() if known.provenance is not None}
    packets = {name.split("::")[1].split(".")[0] for name in modelled}
    assert not packets & ops_without_workspace()


def test_every_op_without_workspace_exists():
    for name in ops_without_workspace():
        assert hasattr(torch.ops.aten, name), name


def native_functions():
    """Entries of PyTorch's ``native_functions.yaml`` as text, by the name of the op."""
    [path] = Path(torchgen.__file__).parent.rglob("native_functions.yaml")
    entries = re.split(r"^- func: ", path.read_text(), flags=re.MULTILINE)[1:]
    return {entry.partition("(")[0]: entry for entry in entries}


def test_ops_whose_kernels_compare_all_devices_are_those_of_pytorch():
    entries = native_functions()
    expected = set()
    for name, entry in entries.items():
        whole = re.search(r"^  structured_delegate: (\S+)", entry, re.MULTILINE)
        kernels = entries[whole[1]] if whole else entry
        has_kernel = re.search(r"^    (\w+, )*CUDA[,:]", kernels, re.MULTILINE)
        positional = re.split(r"\*,|->", entry.partition("\n")[0].partition("(")[2])[0]
        tensors = re.sub(r"\(\w!?\)", "", positional)
        takes_several = tensors.count("Tensor") > 1 or "Tensor[" in tensors
        is_left_out = "backward" in name or name.startswith("miopen_")
        is_unchecked = "device_check: NoCheck" in entry
        if has_kernel and takes_several and not is_left_out and not is_unchecked:
            expected.add(name)
    listed = same_device_ops()

    def is_listed(name):
        packet, _, overload = name.partition(".")
        return not listed.isdisjoint({packet, f"{packet}.{overload or 'default'}"})

    assert RELEASE < (2, 13) or {name for name in expected if not is_listed(name)} == set()
    call_others = {"embedding", "linalg_pinv", "masked_scatter", "put"}
    packets = {name.partition(".")[0] for name in entries}
    compare = {name.partition(".")[0] for name in expected} | call_others
    needless = {name for name in listed if name.partition(".")[0] not in compare}
    known = packets | entries.keys() | {f"{name}.default" for name in entries}
    assert needless & known == set()


@pytest.mark.parametrize(
    ("out", "plain"),
    [
        ("mm.out", "mm.default"),
        ("sum.IntList_out", "sum.dim_IntList"),
        ("mean.out", "mean.dim"),
        ("max.dim_max", "max.dim"),
        ("topk.values", "topk.default"),
        ("std.correction_out", "std.correction"),
    ],
)
def test_ops_that_write_to_a_given_result_take_as_much(out, plain):
    def op(name):
        packet, overload = name.split(".")
        return getattr(getattr(torch.ops.aten, packet), overload)

    known = definition_of(op(plain))
    assert known is not None
    assert known.memory is not None
    written = definition_of(op(out))
    assert (written.memory, written.provenance) == (known.memory, known.provenance)
    assert definition_of(torch.ops.aten.bitwise_and.Tensor_out) is None


SINCE = {"fsdp::chunk_cat_mixed_dtype": (2, 15)}
"""The first release with an op, where that is after 2.13."""


def test_every_memory_model_names_an_op_and_its_source():
    for name, _, source in provenances():
        namespace, _, full = name.partition("::")
        packet, _, overload = full.partition(".")
        op = getattr(getattr(torch.ops, namespace), packet, None)
        known = [] if op is None else op.overloads()
        since = SINCE.get(name, (2, 13))  # earlier releases lack some ops
        assert (overload or "default") in known or since > RELEASE, name
        assert source.startswith(("aten/src/ATen/", "torch/csrc/"))
