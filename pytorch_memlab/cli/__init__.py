"""The command line: ``main.py`` chooses, and there is one file per command."""
