"""Exit codes that a command gives beside those of the program that it runs."""

USAGE_ERROR = 2
"""The command line cannot be carried out."""
