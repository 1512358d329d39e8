"""Sizes, names and paths as texts have them."""
