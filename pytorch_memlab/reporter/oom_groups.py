"""Variables of a program that lead to several tensors, and what their graphs keep."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

import torch

from ..history.out_of_memory import TensorGroup
from ..tensors.memory import address_of
from ..tensors.saved import LEAF, grad_fn, name_of, saved_by_graphs
from .leaks import kind_of

_ADDITIONS = frozenset({"AddBackward0", "AddBackward1"})
_GRAPH_NODES: Final = 20_000


def tensor_groups(
    tensors: Mapping[int, torch.Tensor],
    variables: Mapping[int, str],
    sizes: Mapping[int, int],
    fixed: set[int],
) -> tuple[TensorGroup, ...]:
    """Variables that lead to several tensors, or to one that autograd made."""
    # The sizes are those of blocks, by their addresses; the fixed ones go with no variable.
    members, containers = _members(tensors, variables)
    owned = {
        name: {storage_address(tensor) for tensor in tensors} for name, tensors in members.items()
    }
    graphs = {name: _graph_of(tensors) - fixed - owned[name] for name, tensors in members.items()}
    # What another variable keeps too is not freed with this one.
    holders = Counter(address for name in members for address in owned[name] | graphs[name])
    variables_own = set[int]().union(*owned.values())
    # A pair may be the state of a recurrent layer, which is as good as a variable.
    many = {name for name in containers if len(members[name]) > 2}
    in_containers = Counter(address for name in many for address in owned[name] | graphs[name])
    groups = []
    for name, members_of_name in members.items():
        first = members_of_name[0]
        if len(members_of_name) < 2 and grad_fn(first) is None:
            continue
        alone = [address for address in graphs[name] if holders[address] == 1]
        shared = [
            address
            for address in graphs[name]
            if holders[address] > in_containers[address] == 1 and name in many
        ]
        # What a loop found there, such as what was computed before it, the first tensor keeps too.
        after_first = (graphs[name] - _graph_of([first]) - variables_own) if name in many else set()
        is_variable = name not in containers  # a function may have it several times
        is_sum = is_variable and first.numel() == 1
        groups.append(
            TensorGroup(
                name,
                len(members_of_name),
                own=sum(sizes.get(address, 0) for address in owned[name]),
                graphs=sum(sizes.get(address, 0) for address in alone),
                shared=sum(sizes.get(address, 0) for address in shared),
                running_sums=_running_sums(grad_fn(first)) if is_sum else 0,
                is_variable=is_variable,
                elements=max(tensor.numel() for tensor in members_of_name),
                after_first=sum(sizes.get(address, 0) for address in after_first),
            )
        )
    return tuple(sorted(groups, key=lambda group: -(group.own + group.graphs)))


def _members(
    tensors: Mapping[int, torch.Tensor], variables: Mapping[int, str]
) -> tuple[dict[str, list[torch.Tensor]], set[str]]:
    """The tensors that each variable leads to, and the variables that are containers."""
    members: defaultdict[str, list[torch.Tensor]] = defaultdict(list)
    containers = set()
    for key, name in variables.items():
        tensor = tensors.get(key)
        if tensor is not None and not issubclass(type(tensor), torch.nn.Parameter):
            group = _group_name(name)
            members[group].append(tensor)
            if "[" in name:  # others are variables, of several calls of one function too
                containers.add(group)
    return members, containers


def _graph_of(tensors: Iterable[torch.Tensor]) -> set[int]:
    """Addresses of what the graphs of some tensors keep."""
    saved = islice(saved_by_graphs(map(grad_fn, tensors)), _GRAPH_NODES)
    return {storage_address(tensor) for node, tensor in saved if name_of(node) != LEAF}


def _group_name(name: str) -> str:
    """The container that a name leads through.

    >>> _group_name("losses[17]"), _group_name("main().state['a.weight']"), _group_name("loss")
    ('losses', 'state', 'loss')
    """
    return plain_name(kind_of(name)).partition("[")[0]


def _running_sums(node: Any) -> int:
    """The number of additions that follow one upon the other, from a node towards the leaves."""
    count, level = 0, [node]
    while count < _GRAPH_NODES:
        level = [node for node in level if node is not None and name_of(node) in _ADDITIONS]
        if not level:
            break
        count += 1  # the sum may be the left or the right operand
        following = (following_node for node in level for following_node, _ in node.next_functions)
        level = list({id(node): node for node in following}.values())
    return count


def storage_address(tensor: torch.Tensor) -> int:
    """Address of the storage of a tensor on the GPU; -1 for one that gives none."""
    with torch._C.DisableTorchFunction():
        try:
            return address_of(tensor, tensor.untyped_storage())
        except Exception:  # sparse, a wrapper without memory, or a class that refuses
            return -1


def plain_name(name: str) -> str:
    """A name without the function that has the variable.

    >>> plain_name("attention().scores"), plain_name("model.weight")
    ('scores', 'model.weight')
    """
    return name.rpartition("().")[2]
