"""What a run measured, as plain data that outlives it: ranked, merged and compared."""
