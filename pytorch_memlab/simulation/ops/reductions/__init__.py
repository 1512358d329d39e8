"""Reductions, scans, softmax and histograms."""
