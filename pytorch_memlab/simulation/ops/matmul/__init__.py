"""Matrix products and triangular systems."""
