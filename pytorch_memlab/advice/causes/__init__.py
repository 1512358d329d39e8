"""The causes, a module for each."""
