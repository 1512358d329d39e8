"""Runs of ``pytorch-memlab fit`` in this process."""

import re

from pytorch_memlab.cli.main import main


def fitted(capsys, *words):
    """Exit code, standard output, and standard error without the folder of the output."""
    code = main(["fit", *words])
    out, err = capsys.readouterr()
    return code, out, re.sub(r"is in \S+", "is in FOLDER", err)
