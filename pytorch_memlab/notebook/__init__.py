"""Notebooks: one hub for IPython's events, and what reports on cells and experiments."""
