"""The command line: ``main.py`` reads it, and each command is one file in ``commands``."""
