"""The words of a line behind a magic. This module loads no torch: ``%imu_start`` needs none."""

from __future__ import annotations

import re
from collections.abc import Callable

WORD = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*'|["'])+""")
_QUOTED = re.compile(r"""(["'])(.*?)\1""")


def words_of(options: str, expand: Callable[[str], str] = str) -> list[str]:
    """Options as a list of words, each expanded, then quotes taken off.

    >>> words_of("-q -T 'my table.html' --gpu=h100")
    ['-q', '-T', 'my table.html', '--gpu=h100']
    """
    return [_QUOTED.sub(r"\2", expand(word)) for word in WORD.findall(options)]


def words_before_comment(line: str) -> list[str]:
    return words_of(line.partition("#")[0])
