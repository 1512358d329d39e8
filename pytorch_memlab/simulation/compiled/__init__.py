"""``torch.compile`` on simulated GPUs."""
