"""The checksum in the JSON files that the project writes and reads.

Note [Checksums of files]
The checksum is the last member of the object, on its own line. It is the SHA-256 of all bytes
before that line, and so of the content in the order and with the spaces in which it was written.
A carriage return before the end of a line does not count: git may add them. A file without a
checksum is read: releases before wrote none, and who edits a file removes it.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

from ..errors import ProfileError

_LINE: Final = re.compile(r'\n,"checksum":"sha256:([0-9a-f]{64})"\r?\n\}\s*\Z')


def with_checksum(document: str) -> str:
    """A JSON object with its checksum as its last member."""
    content = document.rstrip().removesuffix("}").rstrip()
    return f'{content}\n,"checksum":"sha256:{_digest(content)}"\n}}\n'


def check(text: str, data: dict[str, Any], called: str) -> None:
    """Refuse a file that was changed after it was written, of which ``data`` is the object."""
    if "checksum" not in data:
        return
    # The line is near the end of what may be hundreds of megabytes.
    start = max(0, len(text) - 200)
    line = _LINE.search(text, start)
    if line is None or _digest(text[: line.start()].removesuffix("\r")) != line[1]:
        raise ProfileError(
            f"{called} was changed or damaged after it was written, its checksum says: copy or"
            " record it again; to read it all the same, remove its line that begins with"
            ' ,"checksum"'
        )


def _digest(content: str) -> str:
    encoded = content.replace("\r\n", "\n").encode("utf-8", "surrogateescape")
    return hashlib.sha256(encoded).hexdigest()
