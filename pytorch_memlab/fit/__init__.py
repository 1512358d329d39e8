"""Trials of a program on GPUs that are not there: does it fit, and with which values."""
