"""Why memory is high, and what would lower it: one file for each cause."""
