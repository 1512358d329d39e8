"""Exit codes of commands, in addition to those of the program that they run."""

FAILED = 1
"""The program failed."""

USAGE_ERROR = 2
"""The command line cannot be carried out."""

NO_VERDICT = USAGE_ERROR
"""Nothing is known: the program failed or used no GPU."""

DOES_NOT_FIT = 3
"""The program needs more memory than it may have."""

FITS_SO_FAR = 4
"""The program fits as far as it was watched; more follows, or its memory does not repeat."""

INTERRUPTED = 130
"""Ctrl-C ended the command; shells give this."""
