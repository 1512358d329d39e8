"""Peaks that other people published, beside what the simulation predicts."""
