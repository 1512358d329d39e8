"""Names of torch that are replaced while simulating: one file per module of torch."""
