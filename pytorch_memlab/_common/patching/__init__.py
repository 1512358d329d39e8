"""Names and functions that are replaced for a while."""
