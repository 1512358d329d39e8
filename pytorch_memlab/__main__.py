"""``python -m pytorch_memlab``: the same as the command ``pytorch-memlab``."""

from pytorch_memlab.cli.main import entry

if __name__ == "__main__":
    entry()
