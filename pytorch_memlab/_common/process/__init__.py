"""The state of this process: its program, files, output, errors, ranks and shells."""
