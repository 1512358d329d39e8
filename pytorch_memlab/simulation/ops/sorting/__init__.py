"""Sorting, unique elements and `isin`."""
