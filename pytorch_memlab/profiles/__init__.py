"""Measurements as plain data that outlives a run: ranked, merged and compared."""
