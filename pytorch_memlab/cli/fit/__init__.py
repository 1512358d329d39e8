"""The parts of ``pytorch-memlab fit``."""
