"""The experts that tokens choose in a dry run.

Note [The load of experts]
The router of a mixture of experts takes the ``topk`` of the scores of each token, whose values a
dry run does not have. With a load, the choices have values: each rank's experts get an even share
times the load from every rank, so that 1.0 is even routing. All that follows has values then, as
with any data of the program: the tokens of each expert, the splits of ``all_to_all_single``, the
rows that a mask selects.

Every rank is taken to be the one with that load, and every other one to send what this one sends.
The experts of a rank are its part of all of them, in order. A token has each expert once at most,
which bounds the load.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import torch

MOST_EXPERTS: Final = 4096
"""Scores of a token; of more it chooses no expert, but a token of a vocabulary."""


@dataclass(frozen=True, slots=True)
class ExpertGroup:
    """The ranks that share the experts, and the place of this one among them."""

    rank: int
    size: int

    def experts(self, count: int) -> range:
        """The numbers of the experts of this rank.

        >>> ExpertGroup(1, 4).experts(8)
        range(2, 4)
        """
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def most_load(self, choices: Collection[tuple[int, int]]) -> float:
        """The largest load with choices of so many of so many experts.

        >>> ExpertGroup(0, 4).most_load({(2, 8)}), ExpertGroup(0, 8).most_load({(2, 8)})
        (4.0, 4.0)
        """
        loads = [0.0]
        for count, experts in choices:
            own = len(self.experts(experts))
            if own:
                loads.append(min(count, own) * experts / (count * own))
        return max(loads)


class ExpertRouting:
    """The choices of all routers of a dry run: Note [The load of experts]."""

    def __init__(
        self,
        load: float = 1.0,  # the tokens of this rank's experts, 1.0 for an even share of all
        # the ranks that share the experts; None if that is not known, for even routing
        group: ExpertGroup | None = None,
        *,
        # tokens whose scores have values, as those of a tiny router, choose so too
        decides: bool = False,
        is_default: bool = False,  # it is that of one rank of many, which the user did not ask for
    ) -> None:
        self.load = load
        self.group = group
        self.decides = decides
        self.is_default = is_default
        # how many experts a token chose, and of how many
        self.choices: set[tuple[int, int]] = set()
        # the group of the last all-to-all with splits; None without one
        self.exchanging: ExpertGroup | None = None

    def choose(self, indices: torch.Tensor, experts: int) -> None:
        """Fill the indices of a choice, whose last dimension is that of the choices of a token."""
        count = indices.shape[-1]
        self.choices.add((count, experts))
        group = self.group or ExpertGroup(0, 1)
        chosen = chosen_experts(
            indices.numel() // count, count, experts, group.experts(experts), self.load
        )
        indices.copy_(chosen.view(indices.shape))


@functools.lru_cache(maxsize=16)
def chosen_experts(tokens: int, count: int, experts: int, own: range, load: float) -> torch.Tensor:
    """The experts of each token, of which those in a range get their even share times a load.

    >>> chosen_experts(4, 2, 4, range(0, 2), 1.5).tolist()
    [[0, 2], [1, 0], [1, 3], [0, 1]]
    """
    others = experts - len(own)
    total = round(load * tokens * count * len(own) / experts)
    total = min(max(total, tokens * (count - others)), tokens * min(count, len(own)))
    ends = torch.arange(tokens + 1) * total // max(tokens, 1)
    column = torch.arange(count)
    begins = ends[:-1, None]
    is_own = column < (ends[1:, None] - begins)
    own_numbers = begins + column
    # The choices of other experts that came before, and those of this token.
    other_numbers = torch.arange(tokens)[:, None] * count - begins
    other_numbers = other_numbers + column - (ends[1:, None] - begins)
    chosen_own = own.start + own_numbers % max(len(own), 1)
    chosen_other = other_numbers % max(others, 1)
    chosen_other = chosen_other + len(own) * (chosen_other >= own.start)
    return torch.where(is_own, chosen_own, chosen_other)
