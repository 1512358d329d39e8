"""The parts of ``pytorch-memlab run``."""
