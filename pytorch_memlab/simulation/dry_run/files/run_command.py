"""A Python that carries out one command in the overlay; Note [Commands of a dry run]."""

from __future__ import annotations

import os
import sys
from typing import Final

_PACKAGE: Final = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 4))


def main() -> int:
    """Join the overlay that the first argument names, and carry out the others."""
    folder, name, *arguments = sys.argv[1:]
    sys.path.insert(0, _PACKAGE)
    from pytorch_memlab.simulation.dry_run.files import file_commands, installed
    from pytorch_memlab.simulation.dry_run.files.overlay import VARIABLE

    os.environ[VARIABLE] = folder
    installed.join()
    return file_commands.carry_out(name, arguments)


if __name__ == "__main__":
    sys.exit(main())
