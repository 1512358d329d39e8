"""Secrets in the values of command lines: passwords, tokens, keys.

Note [What looks like a secret]
An option or variable is taken for one by the words of its name: ``--db-password``, ``API_TOKEN``,
``hf_token=...`` of a configuration. ``token`` and ``key`` mean other things too in programs that
train models: only the singular counts, as the last word (``--hf-token``, not ``--token-dropout``
or ``--max-tokens``); a key has a word before it that says for what (``--api-key``, not ``--key``
or ``--sort-key``), or is a variable in capital letters (``WANDB_KEY=``); and a number, ``true``
or ``none`` is no secret. In addresses, what stands before the ``@`` is masked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MASK: Final = "***"
"""Stands for a secret."""

_SECRETS: Final = re.compile(r"passw(or)?d|passphrase|pwd|secrets?|credentials?")
_LAST: Final = re.compile(r"(auth|access)?token|(api|access|secret|private|auth)key|bearer")
_KEYS_OF: Final = re.compile(
    r"api|access|secret|private|auth|account|license|service|wandb|openai|anthropic|comet|azure"
    r"|storage|encryption|signing|ssh|session"
)
_NO_SECRET: Final = re.compile(r"file|path|length|len")
_PLAIN: Final = re.compile(
    r"[-+]?(\d+(\.\d*)?([eE][-+]?\d+)?|\.\d+)|true|false|none|null|yes|no|on|off|auto|", re.I
)
_ADDRESS: Final = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*://)[^\s/@?#]+(?:@[^\s/@?#]+)*@")
_ASSIGNED: Final = re.compile(r"([-+~]*[A-Za-z_][\w.-]*)([=:])(.*)", re.S)
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def masked(arguments: Sequence[str]) -> tuple[str, ...]:
    """Arguments of a program, with ``***`` in place of secrets.

    >>> masked(["--epochs", "3", "--password", "hunter2", "--api-key=abc", "--max-tokens", "5"])
    ('--epochs', '3', '--password', '***', '--api-key=***', '--max-tokens', '5')
    >>> masked(["s3://me:secret@host/bucket", "WANDB_API_KEY=abc"])
    ('s3://***@host/bucket', 'WANDB_API_KEY=***')
    """
    hidden = []
    is_value = False  # whether the argument is the value of an option that has a secret
    for argument in arguments:
        option = argument.startswith("-") and not _is_plain(argument)
        if is_value and not option:
            hidden.append(argument if _is_plain(argument) else MASK)
            is_value = False
            continue
        hidden.append(_masked(argument))
        is_value = option and "=" not in argument and _is_secret(argument)
    return tuple(hidden)


def _masked(argument: str) -> str:
    """One argument, which may assign a value to a name."""
    assigned = _ASSIGNED.fullmatch(argument)
    if assigned is not None and "://" not in f"{assigned[1]}{assigned[2]}{assigned[3][:2]}":
        name, sign, value = assigned.groups()
        if sign == "=" and _is_secret(name) and not _is_plain(value):
            return f"{name}={MASK}"
    return _ADDRESS.sub(rf"\1{MASK}@", argument)


def _is_secret(name: str) -> bool:
    """True if a name says that its value is a secret."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words:
        return False
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if any(map(_SECRETS.fullmatch, words[-2:])) and not _NO_SECRET.fullmatch(last):
        return True
    if _LAST.fullmatch(last):
        return True
    is_variable = name == name.upper() and bool(before)
    return last == "key" and (_KEYS_OF.fullmatch(before) is not None or is_variable)


def _is_plain(value: str) -> bool:
    """True for a number or a word that no secret is."""
    return _PLAIN.fullmatch(value) is not None
