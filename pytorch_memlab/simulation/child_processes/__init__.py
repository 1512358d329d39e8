"""Processes that a simulated program starts are simulated too."""
