"""The scores of a query and a key, and what a program does to them."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class AttentionScores:
    """The scores of a query and a key, and what was done to them."""

    query: str
    key: str
    scale: str = "1.0"
    is_causal: bool = False
    causal: str = ""  # that mask; empty if it is a bias
    masks: tuple[str, ...] = ()  # True where attention is allowed
    biases: tuple[str, ...] = ()
    dropout: str = ""
    is_normalised: bool = False
    condition: str = ""  # under which there is a mask at all


@dataclass(frozen=True, slots=True)
class AttentionOutput:
    """The product of the weights with the value."""

    scores: AttentionScores
    value: str
    node: ast.expr
    after: str = ""  # what gives the result the layout of the program


@dataclass(slots=True)
class FollowedStatements:
    """The state while the statements of a function are followed."""

    scores: dict[str, AttentionScores] = field(default_factory=dict)
    assigned: dict[str, ast.expr] = field(default_factory=dict)
    statements: list[ast.stmt] = field(default_factory=list)  # those that make or change scores


def joint_mask(scores: AttentionScores) -> str | None:
    """One mask for all; an empty text for none, and None if they cannot be joined in one."""
    parts = [*scores.masks, *scores.biases]
    if not parts:
        return ""
    if scores.masks and scores.biases:
        return None
    if scores.is_causal:
        if scores.biases or scores.condition or not scores.causal:
            return None
        parts = [scores.causal, *parts]
    joint = " & " if scores.masks else " + "
    return joint.join(parts)


def is_default_scale(scores: AttentionScores, reading: FollowedStatements) -> bool:
    """True for one over the square root of the query's last dimension."""
    query = re.escape(scores.query)
    size = rf"{query}\.(size\(-1\)|shape\[-1\])"
    text = scores.scale
    for name, value in reading.assigned.items():
        if re.search(rf"\b{name}\b", text) and re.fullmatch(size, ast.unparse(value)):
            text = re.sub(rf"\b{name}\b", ast.unparse(value), text)
    root = rf"((math|np|numpy)\.sqrt\({size}\)|\({size} \*\* 0\.5\))"
    power = rf"{size} \*\* -0\.5"
    return re.fullmatch(rf"1(\.0)? / {root}|{power}", text) is not None
