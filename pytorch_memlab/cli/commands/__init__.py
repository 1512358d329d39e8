"""The commands of ``pytorch-memlab``: one file for each, whose docstring is the help."""
