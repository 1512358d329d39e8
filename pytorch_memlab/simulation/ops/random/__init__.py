"""Random numbers, sampling and dropout."""
