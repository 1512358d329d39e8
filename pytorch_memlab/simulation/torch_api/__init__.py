"""Names of torch that are replaced while simulating, grouped by the module of torch."""
